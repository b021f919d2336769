"""The tiny random models: configurations and tensors as published checkpoints have them."""

from dataclasses import dataclass

from .weights import RandomTensor, random_tensor

_HIDDEN, _LAYERS, _HEADS, _KV_HEADS, _HEAD_DIM, _VOCAB, _DENSE = 256, 4, 8, 2, 64, 512, 512

# Standard deviations that make every part matter: attention scores, router logits and logits vary by
# about 1, and each block adds about as much as the stream already carries.
_MATRIX_STD = 1 / 16  # 1 / sqrt(hidden)
_FFN_STD = 1 / 16
_EMBEDDING_STD = 1.0
_HEAD_STD = 2 / 16
_BIAS_STD = 0.1
_NORM_STD = 0.1


@dataclass(frozen=True)
class TinyModel:
    name: str
    config: dict
    tensors: list[RandomTensor]
    skipped: list[RandomTensor]  # in the checkpoint, and no part of the computed model


_SHARED_CONFIG = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "head_dim": _HEAD_DIM,
    "hidden_act": "silu",
    "hidden_size": _HIDDEN,
    "intermediate_size": _DENSE,
    "max_position_embeddings": 1024,
    "num_attention_heads": _HEADS,
    "num_hidden_layers": _LAYERS,
    "num_key_value_heads": _KV_HEADS,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": _VOCAB,
}


def _norm(name: str, size: int) -> RandomTensor:
    return random_tensor(name, (size,), _NORM_STD, mean=1.0)


def _attention(prefix: str, bias: bool, qk_norm: bool) -> list[RandomTensor]:
    tensors = [random_tensor(prefix + "o_proj.weight", (_HIDDEN, _HEADS * _HEAD_DIM), _MATRIX_STD)]
    for matrix, heads in (("q", _HEADS), ("k", _KV_HEADS), ("v", _KV_HEADS)):
        rows = heads * _HEAD_DIM
        tensors.append(random_tensor(f"{prefix}{matrix}_proj.weight", (rows, _HIDDEN), _MATRIX_STD))
        if bias:
            tensors.append(random_tensor(f"{prefix}{matrix}_proj.bias", (rows,), _BIAS_STD))
    if qk_norm:
        tensors += [_norm(prefix + "q_norm.weight", _HEAD_DIM), _norm(prefix + "k_norm.weight", _HEAD_DIM)]
    return tensors


def _ffn(prefix: str, width: int) -> list[RandomTensor]:
    return [
        random_tensor(prefix + "gate_proj.weight", (width, _HIDDEN), _FFN_STD),
        random_tensor(prefix + "up_proj.weight", (width, _HIDDEN), _FFN_STD),
        random_tensor(prefix + "down_proj.weight", (_HIDDEN, width), _FFN_STD),
    ]


def _moe(prefix: str, num_experts: int, width: int) -> list[RandomTensor]:
    tensors = [random_tensor(prefix + "gate.weight", (num_experts, _HIDDEN), _MATRIX_STD)]
    for expert in range(num_experts):
        tensors += _ffn(f"{prefix}experts.{expert}.", width)
    return tensors


def _outer() -> list[RandomTensor]:
    return [
        random_tensor("model.embed_tokens.weight", (_VOCAB, _HIDDEN), _EMBEDDING_STD),
        random_tensor("lm_head.weight", (_VOCAB, _HIDDEN), _HEAD_STD),
        _norm("model.norm.weight", _HIDDEN),
    ]


def _layer_norms(prefix: str) -> list[RandomTensor]:
    return [_norm(prefix + "input_layernorm.weight", _HIDDEN), _norm(prefix + "post_attention_layernorm.weight", _HIDDEN)]


def qwen3_moe(name: str, dense_layers: list[int], normalize: bool) -> TinyModel:
    config = _SHARED_CONFIG | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": dense_layers,
        "moe_intermediate_size": 256,
        "norm_topk_prob": normalize,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "rms_norm_eps": 1e-6,
        "sliding_window": None,
        "use_sliding_window": False,
    }
    tensors = _outer()
    for layer in range(_LAYERS):
        prefix = f"model.layers.{layer}."
        tensors += _layer_norms(prefix) + _attention(prefix + "self_attn.", bias=False, qk_norm=True)
        tensors += _ffn(prefix + "mlp.", _DENSE) if layer in dense_layers else _moe(prefix + "mlp.", 8, 256)
    return TinyModel(name, config, tensors, [])


def glm4_moe(name: str, qk_norm: bool) -> TinyModel:
    config = _SHARED_CONFIG | {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "attention_bias": True,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 192,
        "n_group": 1,
        "n_routed_experts": 16,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts_per_tok": 4,
        "num_nextn_predict_layers": 1,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-5,
        "routed_scaling_factor": 2.5,
        "topk_group": 1,
        "use_qk_norm": qk_norm,
    }
    layers: list[list[RandomTensor]] = []
    for layer in range(_LAYERS + 1):
        prefix = f"model.layers.{layer}."
        tensors = _layer_norms(prefix) + _attention(prefix + "self_attn.", bias=True, qk_norm=qk_norm)
        tensors += _glm_moe(prefix + "mlp.") if layer > 0 else _ffn(prefix + "mlp.", _DENSE)
        layers.append(tensors)
    prefix = f"model.layers.{_LAYERS}."
    skipped = layers.pop() + [
        _norm(prefix + "enorm.weight", _HIDDEN),
        _norm(prefix + "hnorm.weight", _HIDDEN),
        random_tensor(prefix + "eh_proj.weight", (_HIDDEN, 2 * _HIDDEN), _MATRIX_STD),
        _norm(prefix + "shared_head.norm.weight", _HIDDEN),
    ]
    return TinyModel(name, config, _outer() + [t for tensors in layers for t in tensors], skipped)


def _glm_moe(prefix: str) -> list[RandomTensor]:
    bias = random_tensor(prefix + "gate.e_score_correction_bias", (16,), _BIAS_STD, dtype="F32")
    return _moe(prefix, 16, 192) + _ffn(prefix + "shared_experts.", 192) + [bias]


def all_models() -> list[TinyModel]:
    return [
        qwen3_moe("tiny_qwen3_moe", dense_layers=[], normalize=True),
        qwen3_moe("tiny_qwen3_moe_dense_layer", dense_layers=[1], normalize=False),
        glm4_moe("tiny_glm4_moe", qk_norm=False),
        glm4_moe("tiny_glm4_moe_qk_norm", qk_norm=True),
    ]
