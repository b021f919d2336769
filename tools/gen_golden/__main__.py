"""Command line: python tools/gen_golden --what tiny|demo."""

import argparse
import sys
from pathlib import Path

_REPO = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(_REPO / "tools"))

_DESCRIPTION = """\
Makes the committed results that tests/golden compares Atelier with, by Hugging Face Transformers in fp32.
Needed only when a model, prompt or format of the golden files changes; tests never need torch.

    python3 -m venv .venv/gen-golden                                  # 5.6 GB
    .venv/gen-golden/bin/pip install --no-deps -r tools/gen_golden/requirements.txt -r tools/demo_model/requirements.txt
    OMP_WAIT_POLICY=PASSIVE .venv/gen-golden/bin/python tools/gen_golden

tiny: random models of every family that the frontend computes (2 minutes).
demo: the dense model behind the demo model: greedy texts and perplexity (10 minutes)."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="gen_golden", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--what", choices=["tiny", "demo", "all"], default="all")
    parser.add_argument("--only", metavar="NAME", help="of the tiny models, this one")
    parser.add_argument("--output", type=Path, default=_REPO / "tests" / "golden" / "data", metavar="DIR")
    parser.add_argument("--demo-model", type=Path, default=_REPO / "build" / "demo-model", metavar="DIR", help="made by tools/demo_model")
    parser.add_argument("--threads", type=int, default=2, help="of torch (default 2)")
    options = parser.parse_args(arguments)
    try:
        import torch

        from gen_golden import demo_golden, tiny_golden
    except ModuleNotFoundError as error:
        print(f"gen_golden: error: Python package {error.name} is missing; see --help", file=sys.stderr)
        return 1
    torch.set_num_threads(options.threads)
    options.output.mkdir(parents=True, exist_ok=True)
    if options.what != "demo":
        tiny_golden.write_all(options.output, "python tools/gen_golden --what tiny", options.only)
    if options.what != "tiny":
        demo_golden.write(options.output, options.demo_model, "python tools/gen_golden --what demo")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
