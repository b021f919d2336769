"""Golden results of the tiny random models."""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch

from demo_model.safetensors_writer import write_safetensors

from .prompts import clear_prompt, greedy_sequence
from .provenance import provenance
from .rounding import RouterGaps, relative_errors, rounded
from .tiny_models import TinyModel, all_models
from .weights import RandomTensor, digest, generate

_PROMPT_LENGTHS = (1, 7, 64, 300)
_GREEDY_PROMPT = 32
_NUM_GREEDY = 64
# Logits of every position of short prompts are stored, of long ones every fifth and the last.
_DENSE_ROWS = 64
_STRIDE = 5


def _load(model: TinyModel) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "config.json").write_text(json.dumps(model.config))
        write_safetensors(path / "model.safetensors", [(t.name, generate(t)) for t in model.tensors])
        loaded, info = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager", output_loading_info=True
        )
    problems = {key: value for key, value in info.items() if value}
    if problems:
        raise RuntimeError(f"{model.name}: Transformers did not load every tensor: {problems}")
    return loaded.eval()


def _logits(model: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    return model(torch.tensor([tokens]), use_cache=False).logits[0].float()


def _stored_rows(count: int) -> list[int]:
    if count <= _DENSE_ROWS:
        return list(range(count))
    return sorted({*range(0, count, _STRIDE), count - 1})


def _sequence(model: torch.nn.Module, gaps: RouterGaps, name: str, tokens: list[int], first: int) -> tuple[dict, np.ndarray]:
    """Results for the positions from `first` on, and the stored logits [rows, vocabulary] in fp16."""
    gaps.clear()
    logits = _logits(model, tokens)[first:]
    router_gaps = gaps.take()[first:]
    noise = {}
    for method in ("bf16", "int8"):
        with rounded(model, method):
            noise[method] = relative_errors(logits, _logits(model, tokens)[first:])
    gaps.clear()
    best = logits.topk(2, dim=-1)
    rows = _stored_rows(len(logits))
    result = {
        "name": name,
        "tokens": tokens,
        "first": first,
        "top1": best.indices[:, 0].tolist(),
        "margin": [round(v, 5) for v in (best.values[:, 0] - best.values[:, 1]).tolist()],
        "norm": [round(v, 4) for v in logits.norm(dim=-1).tolist()],
        "router_gap": [round(v, 5) for v in router_gaps.tolist()],
        "noise_bf16": noise["bf16"],
        "noise_int8": noise["int8"],
        "logit_rows": rows,
    }
    return result, logits[rows].numpy().astype(np.float16)


def _describe(tensor: RandomTensor) -> list:
    return [tensor.name, list(tensor.shape), tensor.dtype, tensor.mean, float(tensor.scale)]


def _write(model: TinyModel, directory: Path, command: str) -> None:
    reference = _load(model)
    gaps = RouterGaps(reference)
    jobs = [(f"prompt_{n}", clear_prompt(reference, gaps, f"prompt_{n}", n), 0) for n in _PROMPT_LENGTHS]
    greedy = greedy_sequence(reference, gaps, "greedy", _GREEDY_PROMPT, _NUM_GREEDY)
    jobs.append((f"greedy_{_NUM_GREEDY}", greedy[:-1], _GREEDY_PROMPT - 1))
    results, stored = zip(*(_sequence(reference, gaps, *job) for job in jobs))
    everything = model.tensors + model.skipped
    golden = {
        "provenance": provenance(command),
        "config": model.config,
        "tensors": [_describe(t) for t in everything],
        "weights_sha256": digest(everything),
        "logits_file": f"{model.name}.logits.fp16",
        "sequences": list(results),
    }
    (directory / f"{model.name}.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    np.concatenate(stored).tofile(directory / golden["logits_file"])
    gaps.remove()


def write_all(directory: Path, command: str, only: str | None) -> None:
    with torch.inference_mode():
        for model in all_models():
            if only is not None and model.name != only:
                continue
            print(f"{model.name} …", flush=True)
            _write(model, directory, command)
