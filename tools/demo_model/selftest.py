"""Checks a finished checkpoint by reading it back, before anyone may use it."""

import json
from pathlib import Path

import numpy as np

from . import experts
from .bfloat16 import to_float32
from .errors import DemoModelError

NUM_TENSORS = 1722
_TEXTS = [
    "What is the capital of France?",
    "In 1984, 2 + 2 = 4; 10000 tokens.",
    "naïve café — 日本語, emoji 🙂\n\tindented\n\n",
    "<|im_start|>user\nHi<|im_end|>\n",
]


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise DemoModelError(f"self-test of the new checkpoint failed: {what}")


class _Shards:
    def __init__(self, directory: Path):
        index = json.loads((directory / "model.safetensors.index.json").read_text())
        self.weight_map: dict[str, str] = index["weight_map"]
        self._directory = directory
        self._tensors: dict[str, dict] = {}

    def check_files(self) -> None:
        from safetensors import deserialize

        seen = 0
        for name in sorted(set(self.weight_map.values())):
            for tensor, entry in deserialize((self._directory / name).read_bytes()):
                _require(self.weight_map.get(tensor) == name, f"{tensor} is in {name} but not in the index")
                seen += 1
                if tensor.startswith("model.layers.1.mlp."):
                    self._tensors[tensor] = entry
        _require(seen == NUM_TENSORS == len(self.weight_map), f"{seen} tensors, expected {NUM_TENSORS}")

    def bf16(self, name: str) -> np.ndarray:
        entry = self._tensors["model.layers.1.mlp." + name]
        _require(entry["dtype"] == "BF16", f"{name} has dtype {entry['dtype']}")
        return to_float32(np.frombuffer(entry["data"], dtype=np.uint16)).reshape(entry["shape"])


def swiglu(rows: np.ndarray, gate: np.ndarray, up: np.ndarray, down: np.ndarray) -> np.ndarray:
    """rows [T, H], gate and up [I, H], down [H, I]."""
    gated = rows @ gate.T
    return (gated / (1 + np.exp(-gated)) * (rows @ up.T)) @ down.T


def route(rows: np.ndarray, router: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Chosen experts [T, TOP_K] and their weights, by the rules that config.json states."""
    scores = 1 / (1 + np.exp(-(rows @ router.T)))
    chosen = np.argsort(-scores, axis=1, kind="stable")[:, : experts.TOP_K]
    picked = np.take_along_axis(scores, chosen, axis=1)
    return chosen, picked / picked.sum(axis=1, keepdims=True) * experts.ROUTED_SCALING_FACTOR


def _check_routing(shards: _Shards) -> None:
    """On random rows of the size that the norm before this layer gives: one copy of each pair is
    chosen, not always the same one, and every weight is near 1."""
    router = shards.bf16("gate.weight")
    rows = np.random.default_rng(1).standard_normal((64, router.shape[1]), dtype=np.float32) * np.float32(0.2)
    chosen, weights = route(rows, router)
    pairs = np.sort(chosen % experts.NUM_PAIRS, axis=1)
    _require(bool((pairs == np.arange(experts.NUM_PAIRS)).all()), "a token chose both copies of an expert, or none")
    usage = (chosen < experts.NUM_PAIRS).mean()
    _require(0.3 < usage < 0.7, f"first copies are used {usage:.0%} of the time: routing does not depend on the token")
    # A score is 1/2 + logit/4 + …, so a weight is within max|logit| of 1.
    bound = np.abs(rows @ router.T).max()
    _require(bool(np.abs(weights - 1).max() <= bound), f"a weight is off 1 by {np.abs(weights - 1).max():.1e}")


def _check_copies(shards: _Shards) -> None:
    for expert in range(experts.NUM_PAIRS):
        for matrix in ("gate", "up", "down"):
            first = shards.bf16(f"experts.{expert}.{matrix}_proj.weight")
            second = shards.bf16(f"experts.{expert + experts.NUM_PAIRS}.{matrix}_proj.weight")
            _require(np.array_equal(first, second), f"experts {expert} and its copy differ in {matrix}_proj")


def _check_tokenizer(directory: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    for text in _TEXTS:
        ids = tokenizer.encode(text).ids
        decoded = tokenizer.decode(ids, skip_special_tokens=False)
        _require(decoded == text, f"tokenizer turns {text!r} into {decoded!r}")
    digits = tokenizer.encode("1984").tokens
    _require(digits == list("1984"), f"digits are not split one by one: {digits}")


def check(directory: Path) -> None:
    """Raises DemoModelError naming what is wrong."""
    shards = _Shards(directory)
    shards.check_files()
    _check_routing(shards)
    _check_copies(shards)
    _check_tokenizer(directory)
