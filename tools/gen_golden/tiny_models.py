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


def _attention(prefix: str, bias: bool, qk_norm: bool, head_dim: int = _HEAD_DIM, whole: bool = False) -> list[RandomTensor]:
    """`whole`: one norm over all heads together."""
    tensors = [random_tensor(prefix + "o_proj.weight", (_HIDDEN, _HEADS * head_dim), _MATRIX_STD)]
    for matrix, heads in (("q", _HEADS), ("k", _KV_HEADS), ("v", _KV_HEADS)):
        rows = heads * head_dim
        tensors.append(random_tensor(f"{prefix}{matrix}_proj.weight", (rows, _HIDDEN), _MATRIX_STD))
        if bias:
            tensors.append(random_tensor(f"{prefix}{matrix}_proj.bias", (rows,), _BIAS_STD))
    if qk_norm:
        q_heads, k_heads = (_HEADS, _KV_HEADS) if whole else (1, 1)
        tensors += [_norm(prefix + "q_norm.weight", q_heads * head_dim), _norm(prefix + "k_norm.weight", k_heads * head_dim)]
    return tensors


_USUAL_NAMES = ("gate_proj", "up_proj", "down_proj")


def _ffn(prefix: str, width: int, names: tuple[str, str, str] = _USUAL_NAMES) -> list[RandomTensor]:
    gate, up, down = names
    return [
        random_tensor(f"{prefix}{gate}.weight", (width, _HIDDEN), _FFN_STD),
        random_tensor(f"{prefix}{up}.weight", (width, _HIDDEN), _FFN_STD),
        random_tensor(f"{prefix}{down}.weight", (_HIDDEN, width), _FFN_STD),
    ]


def _moe(prefix: str, num_experts: int, width: int, names: tuple[str, str, str] = _USUAL_NAMES) -> list[RandomTensor]:
    tensors = [random_tensor(prefix + "gate.weight", (num_experts, _HIDDEN), _MATRIX_STD)]
    for expert in range(num_experts):
        tensors += _ffn(f"{prefix}experts.{expert}.", width, names)
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


def _of_layers(name: str, config: dict, of_layer) -> TinyModel:
    tensors = _outer()
    for layer in range(_LAYERS):
        prefix = f"model.layers.{layer}."
        tensors += _layer_norms(prefix) + of_layer(prefix)
    return TinyModel(name, _SHARED_CONFIG | config, tensors, [])


def mixtral(name: str) -> TinyModel:
    config = {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "intermediate_size": 256,
        "num_experts_per_tok": 2,
        "num_local_experts": 8,
        "rms_norm_eps": 1e-5,
        "sliding_window": None,
    }
    return _of_layers(name, config, lambda prefix: _attention(prefix + "self_attn.", bias=False, qk_norm=False)
                      + _moe(prefix + "block_sparse_moe.", 8, 256, ("w1", "w3", "w2")))


def minimax_m2(name: str) -> TinyModel:
    config = {
        "architectures": ["MiniMaxM2ForCausalLM"],
        "model_type": "minimax_m2",
        "intermediate_size": 192,
        "num_experts_per_tok": 4,
        "num_local_experts": 16,
        "qk_norm_type": "per_layer",
        "rms_norm_eps": 1e-6,
        "rotary_dim": 32,
        "scoring_func": "sigmoid",
        "use_qk_norm": True,
        "use_routing_bias": True,
    }

    def of_layer(prefix: str) -> list[RandomTensor]:
        block = prefix + "block_sparse_moe."
        bias = random_tensor(block + "e_score_correction_bias", (16,), _BIAS_STD, dtype="F32")
        return (_attention(prefix + "self_attn.", bias=False, qk_norm=True, whole=True)
                + _moe(block, 16, 192, ("w1", "w3", "w2")) + [bias])

    return _of_layers(name, config, of_layer)


def olmoe(name: str) -> TinyModel:
    head_dim = _HIDDEN // _HEADS  # its code knows no other
    config = {
        "architectures": ["OlmoeForCausalLM"],
        "model_type": "olmoe",
        "attention_bias": False,
        "clip_qkv": None,
        "head_dim": head_dim,
        "intermediate_size": 192,
        "norm_topk_prob": False,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
    }
    return _of_layers(name, config, lambda prefix: _attention(prefix + "self_attn.", False, True, head_dim, whole=True)
                      + _moe(prefix + "mlp.", 8, 192))


def qwen2_moe(name: str) -> TinyModel:
    config = {
        "architectures": ["Qwen2MoeForCausalLM"],
        "model_type": "qwen2_moe",
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": 192,
        "norm_topk_prob": False,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "qkv_bias": True,
        "rms_norm_eps": 1e-6,
        "shared_expert_intermediate_size": 320,
        "sliding_window": 4096,
        "use_sliding_window": False,
    }

    def of_layer(prefix: str) -> list[RandomTensor]:
        mlp = prefix + "mlp."
        gate = random_tensor(mlp + "shared_expert_gate.weight", (1, _HIDDEN), _MATRIX_STD)
        return (_attention(prefix + "self_attn.", bias=True, qk_norm=False)
                + _moe(mlp, 8, 192) + _ffn(mlp + "shared_expert.", 320) + [gate])

    return _of_layers(name, config, of_layer)


def all_models() -> list[TinyModel]:
    return [
        qwen3_moe("tiny_qwen3_moe", dense_layers=[], normalize=True),
        qwen3_moe("tiny_qwen3_moe_dense_layer", dense_layers=[1], normalize=False),
        glm4_moe("tiny_glm4_moe", qk_norm=False),
        glm4_moe("tiny_glm4_moe_qk_norm", qk_norm=True),
        mixtral("tiny_mixtral"),
        minimax_m2("tiny_minimax_m2"),
        olmoe("tiny_olmoe"),
        qwen2_moe("tiny_qwen2_moe"),
    ]
