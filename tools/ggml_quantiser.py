"""Quantises rows to GGUF's block types: by gguf-py where it can, otherwise by the library that ik-llama-cpp-python ships, which is never
imported as a package (only its exported ggml_quantize_chunk is called)."""
import ctypes
import pathlib
import sys

import gguf
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

LIBRARY = "ik_llama_cpp/lib/libggml.so"
FLOATS = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16)

# What such quantisers take for rows that are no multiple of 256. (For Q5_K this library's own choice is Q6_0, which other programs
# do not know; llama.cpp takes Q5_1.)
FALLBACK = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL"}


def type_for_row(kind: GGMLQuantizationType, columns: int) -> GGMLQuantizationType:
    if columns % GGML_QUANT_SIZES[kind][0] == 0:
        return kind
    return GGMLQuantizationType[FALLBACK[kind.name]]


class Quantiser:
    def __init__(self):
        self._library = None

    def _load(self):
        # The environment .venv/quantiser lies beside the one that this runs in.
        found = sorted(pathlib.Path(sys.prefix).parent.glob(f"quantiser/lib/python*/site-packages/{LIBRARY}"))
        if not found:
            raise SystemExit("error: .venv/quantiser is missing: scripts/test makes it, or\n  python3 -m venv .venv/quantiser && "
                             ".venv/quantiser/bin/pip install --no-deps -r tools/requirements/quantiser.txt")
        library = ctypes.CDLL(str(found[0]))
        library.ggml_quantize_chunk.restype = ctypes.c_size_t
        library.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64,
                                                ctypes.c_int64, ctypes.c_void_p]
        return library

    def __call__(self, values: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
        """Blocks [..., bytes of a row] of fp32 values [..., columns]."""
        values = np.ascontiguousarray(values, np.float32)
        if kind in FLOATS or not kind.name.endswith("_K") and not kind.name.startswith("IQ"):
            return gguf.quants.quantize(values, kind)
        if self._library is None:
            self._library = self._load()
        elements, size = GGML_QUANT_SIZES[kind]
        columns = values.shape[-1]
        rows = values.size // columns
        blocks = np.zeros((*values.shape[:-1], columns // elements * size), np.uint8)
        written = self._library.ggml_quantize_chunk(int(kind), values.ctypes.data, blocks.ctypes.data, 0, rows, columns, None)
        if written != blocks.nbytes:
            raise SystemExit(f"error: {kind.name}: {written} bytes instead of {blocks.nbytes}")
        return blocks
