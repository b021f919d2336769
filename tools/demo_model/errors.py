"""The one exception that reaches the user as a message instead of a traceback."""


class DemoModelError(Exception):
    """A file, package or option is not what it must be. The text says which, and what to do."""
