"""Reads the tensors of a checkpoint folder (sharded safetensors, bf16 and fp32) with NumPy, which has no bfloat16."""
import json
import pathlib

import numpy as np


class CheckpointFolder:
    """A folder's config and tensors; files are mapped, not loaded."""

    def __init__(self, folder: pathlib.Path):
        self.config = json.loads((folder / "config.json").read_text())
        index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
        self._files = {name: self._open(folder / name) for name in set(index.values())}
        self._file_of = index

    @staticmethod
    def _open(path: pathlib.Path):
        file = np.memmap(path, dtype=np.uint8, mode="r")
        length = int(file[:8].view(np.uint64)[0])
        return json.loads(file[8:8 + length].tobytes()), file, 8 + length

    def names(self):
        return self._file_of.keys()

    def raw(self, name: str):
        """(dtype as safetensors names it, shape, bytes)"""
        header, file, start = self._files[self._file_of[name]]
        entry = header[name]
        begin, end = entry["data_offsets"]
        return entry["dtype"], entry["shape"], file[start + begin:start + end]

    def read(self, name: str) -> np.ndarray:
        """A tensor as fp32."""
        dtype, shape, data = self.raw(name)
        if dtype == "F32":
            return data.view(np.float32).reshape(shape)
        if dtype != "BF16":
            raise SystemExit(f"error: {name} is {dtype}: this tool reads BF16 and F32")
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
