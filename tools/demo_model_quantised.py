"""Writes the demo model in a quantised format, laid out as published checkpoints have it.

    .venv/demo-model/bin/python tools/demo_model_quantised.py --model build/demo-model --format fp8_block --output build/demo-fp8

The routed experts, or with --dense=quantised also the matrices of attention, shared experts and dense layers, are quantised; the
rest stays as it is. --dense=widened writes what those matrices would stand for, rounded to bf16, in their place. Values are rounded
to nearest with scales from the largest magnitude (INT4: from the largest and smallest value where the format has zero points): what
the layout is worth, not what a calibrated quantiser gets.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import sys

import numpy as np
from safetensors import TensorSpec, serialize_file

from checkpoint_folder import CheckpointFolder

GROUP = 64  # of INT4: divides both 576 and 128
MX_GROUP = 32
BLOCK = 128  # of FP8, both ways; the last one of a row or column may be smaller
ROUTED = re.compile(r"model\.layers\.\d+\.mlp\.experts\.\d+\.(gate|up|down)_proj\.weight$")
DENSE = re.compile(r"model\.layers\.\d+\.(self_attn\.[qkvo]|mlp\.(shared_experts?\.)?(gate|up|down))_proj\.weight$")
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # nibble p of a word holds output 8 * word + order[p]


def e4m3_values() -> np.ndarray:
    """The 127 values >= 0 of E4M3FN, by code."""
    codes = np.arange(127)
    exponent, mantissa = codes >> 3, codes & 7
    return np.where(exponent == 0, mantissa * 2.0**-9, 2.0**(exponent - 7.0) * (1 + mantissa / 8)).astype(np.float32)


E4M3 = e4m3_values()
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def nearest(values: np.ndarray, table: np.ndarray, sign_bit: int) -> np.ndarray:
    """Codes of the nearest table values, ties to the even code, with the sign in `sign_bit`; uint8."""
    magnitude = np.minimum(np.abs(values), table[-1])
    middles = (table[1:] + table[:-1]) / 2
    codes = np.searchsorted(middles, magnitude, side="left")
    tie = (codes < len(middles)) & (magnitude == middles[np.minimum(codes, len(middles) - 1)])
    codes = codes + (tie & (codes % 2 == 1))
    return (codes | np.where(np.signbit(values), sign_bit, 0)).astype(np.uint8)


def pack_words(nibbles: np.ndarray) -> np.ndarray:
    """Eight nibbles of the last axis to an int32, the first one lowest."""
    words = nibbles.astype(np.uint32).reshape(*nibbles.shape[:-1], -1, 8)
    return (words << (4 * np.arange(8, dtype=np.uint32))).sum(axis=-1, dtype=np.uint32).view(np.int32)


def bf16(w: np.ndarray) -> np.ndarray:
    """The bits of the nearest bf16 of finite fp32 values, ties to even."""
    bits = np.ascontiguousarray(w, np.float32).view(np.uint32)
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def signed(codes: np.ndarray, table: np.ndarray, sign_bit: int) -> np.ndarray:
    """What codes of `nearest` stand for."""
    return np.where(codes & sign_bit, -1, 1).astype(np.float32) * table[codes & (sign_bit - 1)]


# Each returns the published tensors and what they stand for, in fp32.
def fp8_block(w: np.ndarray):
    rows, columns = w.shape
    tall, wide = -(-rows // BLOCK), -(-columns // BLOCK)
    padded = np.zeros((tall * BLOCK, wide * BLOCK), np.float32)
    padded[:rows, :columns] = w
    peak = np.abs(padded.reshape(tall, BLOCK, wide, BLOCK)).max(axis=(1, 3))
    scale = np.where(peak > 0, peak / E4M3[-1], 1).astype(np.float32)
    each = scale.repeat(BLOCK, 0).repeat(BLOCK, 1)[:rows, :columns]
    codes = nearest(w / each, E4M3, 0x80)
    return {"weight": ("float8_e4m3fn", codes), "weight_scale_inv": ("float32", scale)}, signed(codes, E4M3, 0x80) * each


def fp8_channel(w: np.ndarray):
    scale = (np.abs(w).max(axis=1, keepdims=True) / E4M3[-1]).astype(np.float32)
    codes = nearest(w / scale, E4M3, 0x80)
    return {"weight": ("float8_e4m3fn", codes), "weight_scale": ("float32", scale)}, signed(codes, E4M3, 0x80) * scale


def shared_exponents(w: np.ndarray, largest: int):
    """(E8M0 bytes [rows, groups], w divided by them) where `largest` is the exponent of the element type's largest value."""
    groups = w.reshape(w.shape[0], -1, MX_GROUP)
    peak = np.abs(groups).max(axis=2, keepdims=True)
    exponent = np.floor(np.log2(np.where(peak > 0, peak, 1))) - largest
    return (exponent[..., 0] + 127).astype(np.uint8), (groups / np.exp2(exponent)).reshape(w.shape).astype(np.float32)


def powers(exponents: np.ndarray) -> np.ndarray:
    """Of E8M0 bytes, one for each of the inputs that share it."""
    return np.exp2(exponents.astype(np.float32) - 127).repeat(MX_GROUP, 1)


def mxfp8(w: np.ndarray):
    scale, scaled = shared_exponents(w, 8)
    codes = nearest(scaled, E4M3, 0x80)
    return {"weight": ("float8_e4m3fn", codes), "weight_scale_inv": ("uint8", scale)}, signed(codes, E4M3, 0x80) * powers(scale)


def mxfp4(w: np.ndarray):
    scale, scaled = shared_exponents(w, 2)
    codes = nearest(scaled, E2M1, 8)
    return ({"weight_packed": ("uint8", codes[:, 0::2] | codes[:, 1::2] << 4), "weight_scale": ("uint8", scale)},
            signed(codes, E2M1, 8) * powers(scale))


def by_groups(codes: np.ndarray, zeros, scales: np.ndarray) -> np.ndarray:
    """scale * (code - zero), in fp32, of codes [out, in]; zeros and scales are [out, groups]."""
    groups = codes.reshape(codes.shape[0], -1, GROUP).astype(np.float32)
    return (scales.astype(np.float32)[..., None] * (groups - np.asarray(zeros, np.float32)[..., None])).reshape(codes.shape)


def int4(w: np.ndarray):
    groups = w.reshape(w.shape[0], -1, GROUP)
    scale = (np.abs(groups).max(axis=2, keepdims=True) / 7.5).astype(np.float16)
    codes = (np.clip(np.rint(groups / np.maximum(scale.astype(np.float32), 1e-8)), -8, 7) + 8).reshape(w.shape)
    return ({"weight_packed": ("int32", pack_words(codes)), "weight_scale": ("float16", scale[..., 0]),
             "weight_shape": ("int64", np.array(w.shape, np.int64))}, by_groups(codes, 8, scale[..., 0]))


def with_zero_points(w: np.ndarray):
    """(codes [out, in], zeros [out, groups], scales [out, groups]) of w = scale * (code - zero)."""
    groups = w.reshape(w.shape[0], -1, GROUP)
    low = np.minimum(groups.min(axis=2, keepdims=True), 0)
    high = np.maximum(groups.max(axis=2, keepdims=True), 0)
    scale = np.maximum((high - low) / 15, 1e-8).astype(np.float16)
    wide = np.maximum(scale.astype(np.float32), 6e-8)
    zero = np.clip(np.rint(-low / wide), 1, 15)  # GPTQ stores it less one
    codes = np.clip(np.rint(groups / wide) + zero, 0, 15)
    return codes.reshape(w.shape), zero[..., 0], scale[..., 0]


def gptq(w: np.ndarray):
    codes, zeros, scales = with_zero_points(w)
    return ({"qweight": ("int32", pack_words(codes).T), "qzeros": ("int32", pack_words(zeros.T - 1)),
             "scales": ("float16", scales.T), "g_idx": ("int32", np.arange(w.shape[1], dtype=np.int32) // GROUP)},
            by_groups(codes, zeros, scales))


def awq(w: np.ndarray):
    codes, zeros, scales = with_zero_points(w)

    def words(values):  # along the outputs, in the format's order of nibbles
        return pack_words(values.reshape(values.shape[0], -1, 8)[:, :, AWQ_ORDER].reshape(values.shape))

    return ({"qweight": ("int32", words(codes.T)), "qzeros": ("int32", words(zeros.T)), "scales": ("float16", scales.T)},
            by_groups(codes, zeros, scales))


def compressed(form: str, weights: dict) -> dict:
    return {"quant_method": "compressed-tensors", "format": form,
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}


FORMATS = {
    "fp8_block": (fp8_block, {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [BLOCK, BLOCK]}),
    "fp8_channel": (fp8_channel, compressed("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"})),
    "mxfp8": (mxfp8, {"quant_method": "mxfp8"}),
    "mxfp4": (mxfp4, compressed("mxfp4-pack-quantized", {"num_bits": 4, "type": "float", "group_size": MX_GROUP})),
    "int4": (int4, compressed("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP,
                                                 "symmetric": True})),
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": False, "desc_act": False}),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}),
}
NAMES = {"BF16": "bfloat16", "F32": "float32"}
BITS_OF = {"float8_e4m3fn": "uint8"}  # what holds a type that NumPy lacks


def exceptions(description: dict, dense: str) -> dict:
    """The configuration with the list of what is not quantised, under the name that its method has for it."""
    modules = ["lm_head"] if dense == "quantised" else ["lm_head", "self_attn", "shared_experts"]
    if description["quant_method"] == "compressed-tensors":
        return {**description, "ignore": ["lm_head", r"re:.*mlp\.gate$"] + [f"re:.*{name}.*" for name in modules[1:]]}
    layers = [f"model.layers.*.{'mlp.' if name != 'self_attn' else ''}{name}" for name in modules[1:]]
    return {**description, "modules_to_not_convert": ["lm_head", "mlp.gate"] + layers}


def tensors(model: CheckpointFolder, quantise, dense: str) -> dict:
    """name -> (dtype, shape, contiguous array of its bytes)"""
    result = {}
    for name in model.names():
        is_dense = dense != "plain" and DENSE.match(name)
        if not ROUTED.match(name) and not is_dense:
            dtype, shape, data = model.raw(name)
            result[name] = (NAMES[dtype], shape, data)
            continue
        parts, values = quantise(model.read(name))
        if is_dense and dense == "widened":
            result[name] = ("bfloat16", values.shape, bf16(values))
            continue
        for suffix, (dtype, array) in parts.items():
            assert array.dtype == BITS_OF.get(dtype, dtype), (name, suffix, array.dtype)
            result[name.removesuffix("weight") + suffix] = (dtype, array.shape, np.ascontiguousarray(array))
    return result


def write_safetensors(path: pathlib.Path, arrays: dict):
    specs = {name: TensorSpec(dtype=dtype, shape=list(shape), data_ptr=array.ctypes.data, data_len=array.nbytes)
             for name, (dtype, shape, array) in arrays.items()}
    serialize_file(specs, path, {"format": "pt"})


def write(source: pathlib.Path, output: pathlib.Path, form: str, dense: str):
    quantise, description = FORMATS[form]
    model = CheckpointFolder(source)
    staging = output.with_name(f".{output.name}.tmp.{os.getpid()}")
    staging.mkdir(parents=True)
    try:
        write_safetensors(staging / "model.safetensors", tensors(model, quantise, dense))
        config = {**model.config, "quantization_config": exceptions(description, dense)}
        (staging / "config.json").write_text(json.dumps(config, indent=2))
        for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "NOTICE"):
            shutil.copy(source / name, staging / name)
        if output.exists():
            shutil.rmtree(output)
        staging.rename(output)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="the folder that tools/demo_model made")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="the folder to write; replaced if it is there")
    parser.add_argument("--format", choices=FORMATS, required=True, help="of the routed experts")
    parser.add_argument("--dense", choices=("plain", "quantised", "widened"), default="plain",
                        help="the matrices of attention, shared experts and dense layers: as they are, in the format too, or as "
                             "the numbers that they would stand for in it (default plain)")
    options = parser.parse_args()
    write(options.model, options.output, options.format, options.dense)
    print(f"{options.output}: {(options.output / 'model.safetensors').stat().st_size / 2**20:.1f} MiB, {options.format}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
