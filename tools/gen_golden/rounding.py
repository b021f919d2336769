"""How much a model's logits move when numbers are rounded where an engine may round them.

The tolerance of a golden test must follow from the number formats and not from what our engine happens to
reach. So the reference runs again, still in fp32 arithmetic, but with the operands rounded that an ideal
engine of each method rounds: every input of a matrix product to bfloat16, queries, keys and values to
bfloat16, and for INT8 the experts' weights per output row and their inputs per token row to 8 bits. The
router stays fp32. The relative error of those logits is the model's own sensitivity to the format.
"""

import contextlib
import sys
from typing import Iterator

import torch

_INT8_MAX = 127


def _bf16(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.bfloat16).to(torch.float32)


def _int8_rows(values: torch.Tensor) -> torch.Tensor:
    scale = values.abs().amax(dim=-1, keepdim=True).clamp_min(1e-30) / _INT8_MAX
    return (values / scale).round() * scale


def _is_router(module: torch.nn.Module) -> bool:
    return type(module).__name__.endswith(("TopkRouter", "TopKRouter"))


def _is_experts(module: torch.nn.Module) -> bool:
    return type(module).__name__.endswith("Experts")


class _Scope:
    """Counts how deep we are inside modules of one kind."""

    def __init__(self) -> None:
        self.depth = 0

    def hooks(self, module: torch.nn.Module) -> list:
        def enter(*_):
            self.depth += 1

        def leave(*_):
            self.depth -= 1

        return [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]


@contextlib.contextmanager
def rounded(model: torch.nn.Module, method: str) -> Iterator[None]:
    """Within, `model` computes as an ideal engine of `method` (bf16 or int8) does."""
    router, experts = _Scope(), _Scope()
    hooks = []
    for module in model.modules():
        if _is_router(module):
            hooks += router.hooks(module)
        if _is_experts(module):
            hooks += experts.hooks(module)
    exact_linear = torch.nn.functional.linear

    def linear(rows, weight, bias=None):
        if router.depth:
            return exact_linear(rows, weight, bias)
        if experts.depth and method == "int8":
            return exact_linear(_int8_rows(_bf16(rows)), _int8_rows(weight), bias)
        return exact_linear(_bf16(rows), weight, bias)

    module = sys.modules[type(model).__module__]
    exact_attention = module.eager_attention_forward

    def attention(owner, query, key, value, *args, **kwargs):
        return exact_attention(owner, _bf16(query), _bf16(key), _bf16(value), *args, **kwargs)

    torch.nn.functional.linear = linear
    module.eager_attention_forward = attention
    try:
        yield
    finally:
        torch.nn.functional.linear = exact_linear
        module.eager_attention_forward = exact_attention
        for hook in hooks:
            hook.remove()


def relative_errors(reference: torch.Tensor, other: torch.Tensor) -> list[float]:
    """Per position: 2-norm of the difference over 2-norm of the reference."""
    error = (other - reference).norm(dim=-1) / reference.norm(dim=-1)
    return [float(f"{value:.4g}") for value in error.tolist()]


class RouterGaps:
    """Collects, per position, how near the router was to choosing otherwise: over all layers the least
    distance between the last chosen and the first rejected expert, in units of the spread (RMS about the
    mean) of that token's router logits. For sigmoid scores with a correction bias a distance of scores counts 4 times, because a
    score moves at most 1/4 as far as its logit."""

    def __init__(self, model: torch.nn.Module):
        self._gaps: list[torch.Tensor] = []
        self._hooks = [m.register_forward_hook(self._record) for m in model.modules() if _is_router(m)]

    def _record(self, module, inputs, outputs) -> None:
        logits = outputs[0].float()
        # Some models give the bias to the router at each call.
        bias = getattr(module, "e_score_correction_bias", inputs[1] if len(inputs) > 1 else None)
        if bias is not None:
            choice = 4 * (logits.sigmoid() + bias)
        else:
            choice = logits
        best = choice.topk(module.top_k + 1, dim=-1).values
        self._gaps.append((best[:, -2] - best[:, -1]) / logits.std(dim=-1, unbiased=False))

    def take(self) -> torch.Tensor:
        """[positions] since the last call."""
        gaps = torch.stack(self._gaps).amin(dim=0)
        self.clear()
        return gaps

    def clear(self) -> None:
        self._gaps = []

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
