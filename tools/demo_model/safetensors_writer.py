"""Writes safetensors files byte for byte the same every time."""

import json
import os
import struct
from pathlib import Path
from typing import Iterable

import numpy as np

_DTYPES = {np.dtype(np.uint16): "BF16", np.dtype(np.float32): "F32"}


def _header(tensors: Iterable[tuple[str, np.ndarray]]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, array in tensors:
        entries[name] = {
            "dtype": _DTYPES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)  # the data begins 8-byte aligned


def write_safetensors(path: Path, tensors: list[tuple[str, np.ndarray]]) -> None:
    """uint16 arrays are bfloat16 bits. In the order given, but fp32 tensors first, so that every
    tensor is aligned to its element. Synced to disk."""
    ordered = sorted(tensors, key=lambda item: item[1].dtype != np.float32)
    header = _header(ordered)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)))
        file.write(header)
        for _, array in ordered:
            file.write(np.ascontiguousarray(array).data)
        file.flush()
        os.fsync(file.fileno())


class ShardedWriter:
    """Collects tensors in order and writes them as `num_shards` files of about `total_bytes` /
    `num_shards`, plus the index. Holds one shard in memory."""

    def __init__(self, directory: Path, num_shards: int, total_bytes: int):
        self._directory = directory
        self._num_shards = num_shards
        self._limit = -(-total_bytes // num_shards)
        self._pending: list[tuple[str, np.ndarray]] = []
        self._pending_bytes = 0
        self._total_bytes = 0
        self._weight_map: dict[str, str] = {}
        self._shard = 0

    def add(self, name: str, array: np.ndarray) -> None:
        last = self._shard + 1 == self._num_shards
        if self._pending and not last and self._pending_bytes + array.nbytes > self._limit:
            self._flush()
        self._pending.append((name, array))
        self._pending_bytes += array.nbytes

    def finish(self) -> None:
        self._flush()
        index = {"metadata": {"total_size": self._total_bytes}, "weight_map": dict(sorted(self._weight_map.items()))}
        path = self._directory / "model.safetensors.index.json"
        path.write_text(json.dumps(index, indent=2) + "\n")

    def _flush(self) -> None:
        self._shard += 1
        name = f"model-{self._shard:05d}-of-{self._num_shards:05d}.safetensors"
        write_safetensors(self._directory / name, self._pending)
        self._weight_map |= {tensor: name for tensor, _ in self._pending}
        self._total_bytes += self._pending_bytes
        self._pending, self._pending_bytes = [], 0
