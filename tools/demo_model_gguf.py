"""Writes the demo model as one GGUF file (architecture glm4moe), its matrices quantised by public code (ggml_quantiser.py).

    .venv/demo-model/bin/python tools/demo_model_gguf.py --model build/demo-model --type Q8_0 --output build/demo-q8_0.gguf

Norms, routers and biases stay F32.
"""
import argparse
import os
import pathlib
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType

from checkpoint_folder import CheckpointFolder
from demo_model.source import Source, find_gguf
from ggml_quantiser import Quantiser, type_for_row
from padded_model import PaddedModel

TYPES = ("F32", "BF16", "Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_1")
# Mixes of types as llama.cpp's quantiser makes them, without an importance matrix: of most matrices; of those that matter more; of the
# embedding, which is the output matrix too. Q6_K and IQ4_XS have no second type.
MIXES = {"Q4_K_M": ("Q4_K", "Q6_K", "Q6_K"), "Q5_K_M": ("Q5_K", "Q6_K", "Q6_K"), "Q6_K": ("Q6_K", "Q6_K", "Q6_K"),
         "IQ4_XS": ("IQ4_XS", "IQ4_XS", "Q6_K")}
ARCHITECTURE = "glm4moe"

# Hugging Face names behind "model.layers.N." -> GGUF's behind "blk.N.". Attention keeps its rows: this
# architecture rotates the halves of a head in both.
OF_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.shared_experts.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_experts.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_experts.down_proj.weight": "ffn_down_shexp.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
GLOBAL = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}


def add_metadata(writer: gguf.GGUFWriter, config: dict):
    writer.add_name("Atelier demo model")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(int(config["head_dim"] * config["partial_rotary_factor"]))
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def add_tokenizer(writer: gguf.GGUFWriter):
    """As the published file has it, which the folder's tokenizer.json was made of."""
    tokenizer = Source(find_gguf()).tokenizer()
    special = set(tokenizer.special_ids)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokenizer.tokens)
    writer.add_token_types([3 if i in special else 1 for i in range(len(tokenizer.tokens))])
    writer.add_token_merges(tokenizer.merges)
    writer.add_bos_token_id(tokenizer.bos_id)
    writer.add_eos_token_id(tokenizer.eos_id)
    writer.add_unk_token_id(tokenizer.unk_id)
    writer.add_pad_token_id(tokenizer.pad_id)
    writer.add_chat_template(tokenizer.chat_template)
    writer.add_add_bos_token(False)


def matters_more(layer: int, layers: int) -> bool:
    """Of these layers, the values of attention and the last matrix of the FFN get the better type."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


class TensorWriter:
    """Writes each matrix in the type that a quantiser asked for `form` would choose."""

    def __init__(self, writer: gguf.GGUFWriter, form: str, layers: int):
        self._writer, self._form, self._layers = writer, form, layers
        self._quantise = Quantiser()

    def _type(self, name: str, columns: int) -> GGMLQuantizationType:
        if name.endswith("ffn_gate_inp.weight"):
            return GGMLQuantizationType.F32
        if self._form not in MIXES:
            return GGMLQuantizationType[self._form]
        usual, better, embedding = MIXES[self._form]
        if name == "token_embd.weight":
            chosen = embedding
        else:
            layer = int(name.split(".")[1])
            chosen = better if ("attn_v" in name or "ffn_down" in name) and matters_more(layer, self._layers) else usual
        return type_for_row(GGMLQuantizationType[chosen], columns)

    def add(self, name: str, values: np.ndarray):
        kind = GGMLQuantizationType.F32 if values.ndim == 1 else self._type(name, values.shape[-1])
        self._writer.add_tensor(name, self._quantise(values, kind), raw_dtype=kind)


def add_tensors(writer: TensorWriter, model: CheckpointFolder | PaddedModel):
    names = set(model.names())
    for name, target in GLOBAL.items():
        writer.add(target, model.read(name))
    for layer in range(model.config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, target in OF_LAYER.items():
            if prefix + name in names:
                writer.add(f"blk.{layer}.{target}", model.read(prefix + name))
        if prefix + "mlp.experts.0.gate_proj.weight" not in names:
            continue
        for part in ("gate", "up", "down"):
            experts = [model.read(f"{prefix}mlp.experts.{e}.{part}_proj.weight")
                       for e in range(model.config["n_routed_experts"])]
            writer.add(f"blk.{layer}.ffn_{part}_exps.weight", np.stack(experts))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="the folder that tools/demo_model made")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="the file to write")
    parser.add_argument("--type", choices=(*TYPES, *MIXES), default="Q8_0", help="of all matrices, or a mix (default: %(default)s)")
    parser.add_argument("--pad", action="store_true",
                        help="add zeros until every row is a multiple of 256, which changes no result; without, the mixes have other "
                             "types in the rows that are none, as in published files")
    options = parser.parse_args()
    model = PaddedModel(options.model) if options.pad else CheckpointFolder(options.model)
    staging = options.output.with_name(f".{options.output.name}.tmp.{os.getpid()}")
    writer = gguf.GGUFWriter(staging, ARCHITECTURE)
    try:
        add_metadata(writer, model.config)
        add_tokenizer(writer)
        add_tensors(TensorWriter(writer, options.type, model.config["num_hidden_layers"]), model)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        staging.rename(options.output)
    finally:
        staging.unlink(missing_ok=True)
    print(f"{options.output}: {options.output.stat().st_size / 2**20:.1f} MiB, {options.type}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
