"""bfloat16 as uint16 arrays: numpy has no such type."""

import numpy as np


def round_to_bfloat16(values: np.ndarray) -> np.ndarray:
    """The upper halves of finite fp32 values, rounded to nearest, ties to even; uint16."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def to_float32(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
