"""The JSON files beside the weights: config, generation config and tokenizer."""

from . import experts
from .source import SourceConfig, SourceTokenizer


def config_json(source: SourceConfig, tokenizer: SourceTokenizer) -> dict:
    return {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
        "pad_token_id": tokenizer.pad_id,
        "first_k_dense_replace": 1,
        "head_dim": source.head_dim,
        "hidden_act": "silu",
        "hidden_size": source.hidden_size,
        "intermediate_size": source.intermediate_size,
        "max_position_embeddings": source.max_position_embeddings,
        "moe_intermediate_size": experts.SLICE_WIDTH,
        "n_group": 1,
        "n_routed_experts": experts.NUM_EXPERTS,
        "n_shared_experts": experts.NUM_SHARED_SLICES,
        "norm_topk_prob": True,
        "num_attention_heads": source.num_heads,
        "num_experts_per_tok": experts.TOP_K,
        "num_hidden_layers": source.num_layers,
        "num_key_value_heads": source.num_kv_heads,
        # Both are written although they look like defaults: Transformers' own are 1 and 0.5.
        "num_nextn_predict_layers": 0,
        "partial_rotary_factor": 1.0,
        "rms_norm_eps": source.rms_norm_eps,
        "rope_scaling": None,
        "rope_theta": source.rope_theta,
        "routed_scaling_factor": experts.ROUTED_SCALING_FACTOR,
        "tie_word_embeddings": True,
        "topk_group": 1,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_qk_norm": False,
        "vocab_size": source.vocab_size,
    }


def generation_config_json(tokenizer: SourceTokenizer) -> dict:
    return {
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
        "pad_token_id": tokenizer.pad_id,
    }


def _added_token(content: str) -> dict:
    return {
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def tokenizer_json(tokenizer: SourceTokenizer) -> dict:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, **_added_token(tokenizer.tokens[i])} for i in tokenizer.special_ids],
        "normalizer": None,
        # The order matters: digits are split off one by one before the GPT-2 pattern sees the text.
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokenizer.tokens)},
            "merges": tokenizer.merges,
        },
    }


def tokenizer_config_json(source: SourceConfig, tokenizer: SourceTokenizer) -> dict:
    special = {str(i): _added_token(tokenizer.tokens[i]) for i in tokenizer.special_ids}
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": special,
        "additional_special_tokens": [tokenizer.tokens[tokenizer.bos_id], tokenizer.tokens[tokenizer.eos_id]],
        "bos_token": tokenizer.tokens[tokenizer.bos_id],
        "chat_template": tokenizer.chat_template,
        "clean_up_tokenization_spaces": False,
        "eos_token": tokenizer.tokens[tokenizer.eos_id],
        "model_max_length": source.max_position_embeddings,
        "pad_token": tokenizer.tokens[tokenizer.pad_id],
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": tokenizer.tokens[tokenizer.unk_id],
    }
