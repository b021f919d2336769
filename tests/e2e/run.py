"""What ctest starts: the end-to-end tests under the Python environment that scripts/test made.

Usage: run.py BUILD_DIR. Environment: ATELIER_E2E_VENV (default .venv/e2e) names the environment with pytest; see also conftest.py.
Writes BUILD_DIR/test-results/e2e.xml for tools/test_report and ends with pytest's own summary.
"""
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
REPO = HERE.parent.parent


def main() -> int:
    build = pathlib.Path(sys.argv[1]).resolve()
    python = pathlib.Path(os.environ.get("ATELIER_E2E_VENV", REPO / ".venv" / "e2e")) / "bin" / "python"
    if not python.exists():
        print(f"{python} is missing: scripts/test makes it, or python3 -m venv and pip install -r tests/e2e/requirements.txt")
        return 1
    command = [python, "-m", "pytest", HERE, "-v", "-rP", "--tb=short", "-p", "no:cacheprovider",
               f"--junitxml={build / 'test-results' / 'e2e.xml'}"]
    os.execve(python, [str(part) for part in command], {**os.environ, "ATELIER_BUILD_DIR": str(build)})


if __name__ == "__main__":
    sys.exit(main())
