"""Golden results of the dense model behind the demo model: greedy answers and perplexity. From the demo model
itself comes only how much rounding moves its logits."""

import json
from pathlib import Path

import numpy as np
import torch

from demo_model import metadata
from demo_model.bfloat16 import to_float32
from demo_model.source import FILE_SHA256, Source, find_gguf, verify_gguf

from .provenance import provenance
from .rounding import relative_errors, rounded

_NUM_TOKENS = 64
_NUM_LOGITS = 8  # best ones stored per position
_WINDOW = 1024
# Kept whole, because the licence text may be copied verbatim only; the first bytes of it are used.
_TEXT = "gpl-3.0.txt"
_TEXT_BYTES = 8192


def _dense_model(source: Source) -> torch.nn.Module:
    """The plain llama model, bfloat16 weights, fp32 compute."""
    from transformers import LlamaConfig, LlamaForCausalLM

    c = source.config
    config = LlamaConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        intermediate_size=c.intermediate_size,
        num_hidden_layers=c.num_layers,
        num_attention_heads=c.num_heads,
        num_key_value_heads=c.num_kv_heads,
        max_position_embeddings=c.max_position_embeddings,
        rms_norm_eps=c.rms_norm_eps,
        rope_theta=c.rope_theta,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config)
    state = {"model.embed_tokens.weight": source.embedding(), "model.norm.weight": source.final_norm()}
    for layer in range(c.num_layers):
        state |= {f"model.layers.{layer}.{name}": value for name, value in source.layer(layer).items()}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict({name: torch.from_numpy(to_float32(value)) for name, value in state.items()}, strict=True)
    return model.eval()


class _Tokenizer:
    def __init__(self, source: Source):
        import jinja2
        from tokenizers import Tokenizer

        described = source.tokenizer()
        self._tokenizer = Tokenizer.from_str(json.dumps(metadata.tokenizer_json(described)))
        self._template = jinja2.Environment().from_string(described.chat_template)
        self.eos_id = described.eos_id

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text).ids

    def decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens)

    def chat(self, question: str) -> list[int]:
        messages = [{"role": "user", "content": question}]
        return self.encode(self._template.render(messages=messages, add_generation_prompt=True))


def _answer(model: torch.nn.Module, tokenizer: _Tokenizer, question: str) -> dict:
    """Greedy tokens up to and with the first end token, at most _NUM_TOKENS."""
    from transformers import DynamicCache

    prompt = tokenizer.chat(question)
    cache = DynamicCache(config=model.config)
    step, tokens, rows = prompt, [], []
    while len(tokens) < _NUM_TOKENS and (not tokens or tokens[-1] != tokenizer.eos_id):
        logits = model(torch.tensor([step]), cache=cache).logits[0, -1]
        rows.append(logits)
        step = [int(logits.argmax())]
        tokens += step
    best = torch.stack(rows).topk(_NUM_LOGITS, dim=-1)
    return {
        "question": question,
        "prompt": prompt,
        "tokens": tokens,
        "text": tokenizer.decode(tokens),
        "margin": [round(v, 4) for v in (best.values[:, 0] - best.values[:, 1]).tolist()],
        "best_ids": best.indices.tolist(),
        "best_logits": [[round(v, 4) for v in row] for row in best.values.tolist()],
    }


def _load_demo_model(directory: Path) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    )
    return model.eval()


def _noise(model: torch.nn.Module, answer: dict) -> dict:
    """Per token of the answer: relative error of the logits when only operands are rounded."""
    tokens = torch.tensor([answer["prompt"] + answer["tokens"][:-1]])
    first = len(answer["prompt"]) - 1
    exact = model(tokens, use_cache=False).logits[0, first:]
    noise = {}
    for method in ("bf16", "int8"):
        with rounded(model, method):
            noise[f"noise_{method}"] = relative_errors(exact, model(tokens, use_cache=False).logits[0, first:])
    return noise


def _perplexity(model: torch.nn.Module, tokens: list[int]) -> dict:
    """Every window stands alone: its first token is given, the others are predicted."""
    windows = []
    for begin in range(0, len(tokens), _WINDOW):
        window = torch.tensor(tokens[begin : begin + _WINDOW])
        logits = model(window[None], use_cache=False).logits[0, :-1].float()
        nll = torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum")
        windows.append({"predicted": len(window) - 1, "nll": float(nll)})
    total = sum(w["nll"] for w in windows) / sum(w["predicted"] for w in windows)
    return {"text": _TEXT, "text_bytes": _TEXT_BYTES, "window": _WINDOW, "tokens": tokens, "windows": windows, "perplexity": float(np.exp(total))}


def write(directory: Path, demo_model: Path, command: str) -> None:
    gguf = find_gguf()
    verify_gguf(gguf)
    source = Source(gguf)
    model, tokenizer = _dense_model(source), _Tokenizer(source)
    mixture = _load_demo_model(demo_model)
    questions = (Path(__file__).parent / "demo_prompts.txt").read_text().splitlines()
    answers = []
    with torch.inference_mode():
        perplexity = _perplexity(model, tokenizer.encode((directory / _TEXT).read_bytes()[:_TEXT_BYTES].decode()))
        print(f"perplexity {perplexity['perplexity']:.4f} over {len(perplexity['tokens'])} tokens", flush=True)
        for question in questions:
            answers.append(_answer(model, tokenizer, question))
            answers[-1] |= _noise(mixture, answers[-1])
            print(f"{question} -> {answers[-1]['text']!r}", flush=True)
    golden = {
        "provenance": provenance(command) | {"gguf_sha256": FILE_SHA256},
        "answers": answers,
        "perplexity": perplexity,
    }
    (directory / "demo_model.json").write_text(json.dumps(golden, separators=(",", ":"), ensure_ascii=False) + "\n")
