"""Prompts for the tiny models on which routing is no coin toss.

Random routers put the last chosen and the first rejected expert near each other for many tokens, and there any
rounding may swap two experts, which changes that position's logits by a fifth and, through attention, all
later ones. Such positions test nothing. So each token of a prompt is the first of some random candidates
that leaves a clear gap, and the greedy sequence is the best of several.
"""

import torch
from transformers import DynamicCache

from .rounding import RouterGaps
from .weights import random_ids

_CLEAR_GAP = 0.12  # in the units of RouterGaps; several times what INT8 rounding moves the logits
_CANDIDATES = 24


def clear_prompt(model: torch.nn.Module, gaps: RouterGaps, name: str, length: int) -> list[int]:
    """`length` token ids; a function of the model and the name."""
    choices = random_ids(name, length * _CANDIDATES, model.config.vocab_size)
    cache = DynamicCache(config=model.config)
    prompt: list[int] = []
    for position in range(length):
        candidates = choices[position * _CANDIDATES : (position + 1) * _CANDIDATES]
        gaps.clear()
        model(torch.tensor(candidates)[:, None], cache=cache)
        found = gaps.take()
        clear = (found >= _CLEAR_GAP).nonzero()
        winner = int(clear[0]) if len(clear) else int(found.argmax())
        prompt.append(candidates[winner])
        cache.batch_select_indices(torch.full((_CANDIDATES,), winner))
    return prompt


def greedy_sequence(model: torch.nn.Module, gaps: RouterGaps, name: str, length: int, count: int) -> list[int]:
    """A prompt of `length` tokens with its `count` greedy ones. Of several last prompt tokens, the one after
    which routing stays clearest."""
    stem = clear_prompt(model, gaps, name, length - 1)
    last = random_ids(name + "_last", _CANDIDATES, model.config.vocab_size)
    step = torch.tensor([stem + [token] for token in last])
    tokens, unclear = step, torch.zeros(_CANDIDATES)
    cache = DynamicCache(config=model.config)
    gaps.clear()
    for _ in range(count):
        logits = model(step, cache=cache).logits[:, -1]
        unclear += gaps.take().view(_CANDIDATES, -1)[:, -1] < _CLEAR_GAP / 2
        step = logits.argmax(dim=-1, keepdim=True)
        tokens = torch.cat([tokens, step], dim=1)
    return tokens[int(unclear.argmin())].tolist()
