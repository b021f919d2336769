"""Writes the committed GGUF file that libs/checkpoint's tests compare their reading of block types with.

    .venv/demo-model/bin/python tools/gen_golden/gguf_types.py libs/checkpoint/testdata/gguf/types.gguf

Per type: a tensor "TYPE.blocks" of random blocks, and "TYPE.values", what the `gguf` package dequantises them to (fp32).
For the types that the package can quantise to there is "TYPE.quantised" too: random normal values in that type.
Needs tools/demo_model/requirements.txt; a function of the code and the pinned versions."""

import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, dequantize, quantize

# By type: where a block has its fp16 scales.
SCALES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [],
}  # fmt: skip
QUANTISED = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
ROWS, COLUMNS = 2, 256


def random_blocks(generator: np.random.Generator, kind: GGMLQuantizationType) -> np.ndarray:
    elements, size = GGML_QUANT_SIZES[kind]
    blocks = generator.integers(0, 256, (ROWS * COLUMNS // elements, size), dtype=np.uint8)
    for offset in SCALES[kind.name]:
        # Of every exponent, subnormal ones too, but no infinity or NaN.
        bits = generator.integers(0, 0x7C00, len(blocks), dtype=np.uint16)
        bits |= generator.integers(0, 2, len(blocks), dtype=np.uint16) << 15
        blocks[:, offset : offset + 2] = bits.view(np.uint8).reshape(-1, 2)
    if kind.name == "MXFP4":
        blocks[:, 0] = np.linspace(0, 254, len(blocks)).astype(np.uint8)
    return blocks.reshape(ROWS, -1)


def main(path: str) -> None:
    generator = np.random.Generator(np.random.PCG64(20261202))
    writer = GGUFWriter(path, "oracle")
    for name in SCALES:
        kind = GGMLQuantizationType[name]
        blocks = random_blocks(generator, kind)
        writer.add_tensor(f"{name}.blocks", blocks, raw_dtype=kind)
        writer.add_tensor(f"{name}.values", dequantize(blocks, kind))
        if name in QUANTISED:
            values = generator.standard_normal((1, COLUMNS)).astype(np.float32)
            quantised = quantize(values, kind)
            writer.add_tensor(f"{name}.quantised.blocks", quantised, raw_dtype=kind)
            writer.add_tensor(f"{name}.quantised.values", dequantize(quantised, kind))
    halves = generator.standard_normal((ROWS, 32)).astype(np.float16)
    writer.add_tensor("F16.blocks", halves)
    writer.add_tensor("F16.values", halves.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(sys.argv[1])
