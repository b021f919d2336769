"""Random weights by integer arithmetic, the same bits here and in tests/golden/random_weights.cc.

Nothing large is committed: the test writes the tiny checkpoints itself, and a digest in the golden file
proves that both sides computed with the same weights. Element i of a tensor is
    s = sum of the four 16-bit words of splitmix64(fnv1a64(name), i), minus 2 * 65535   (near normal, an exact integer)
    value = fp32(fp32(s) * scale) + mean, in fp32
where the standard deviation of s is 65536 / sqrt(3).
"""

import hashlib
import math
from dataclasses import dataclass

import numpy as np

from demo_model.bfloat16 import round_to_bfloat16

_SUM_STD = 65536 / math.sqrt(3)


@dataclass(frozen=True)
class RandomTensor:
    name: str
    shape: tuple[int, ...]
    dtype: str  # BF16 or F32
    mean: float
    scale: np.float32


def random_tensor(name: str, shape: tuple[int, ...], std: float, mean: float = 0.0, dtype: str = "BF16") -> RandomTensor:
    return RandomTensor(name, shape, dtype, mean, np.float32(std / _SUM_STD))


def _fnv1a64(text: str) -> int:
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    return value


def _splitmix64(seed: int, count: int) -> np.ndarray:
    golden = np.uint64(0x9E3779B97F4A7C15)
    z = np.uint64(seed) + golden * np.arange(1, count + 1, dtype=np.uint64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def generate(tensor: RandomTensor) -> np.ndarray:
    """bfloat16 bits (uint16) or fp32, of the tensor's shape."""
    words = _splitmix64(_fnv1a64(tensor.name), math.prod(tensor.shape)).view(np.uint16).reshape(-1, 4)
    total = words.astype(np.int32).sum(axis=1, dtype=np.int32) - np.int32(2 * 65535)
    values = total.astype(np.float32) * tensor.scale + np.float32(tensor.mean)
    values = values.reshape(tensor.shape)
    return round_to_bfloat16(values) if tensor.dtype == "BF16" else values


def digest(tensors: list[RandomTensor]) -> str:
    """sha256 of all tensors' bytes, in the order of their names."""
    result = hashlib.sha256()
    for tensor in sorted(tensors, key=lambda t: t.name):
        result.update(generate(tensor).tobytes())
    return result.hexdigest()


def random_ids(name: str, count: int, vocab_size: int) -> list[int]:
    return (_splitmix64(_fnv1a64(name), count) % np.uint64(vocab_size)).astype(int).tolist()
