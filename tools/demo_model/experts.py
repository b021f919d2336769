"""Turns one dense SwiGLU layer into a shared expert and 16 routed ones that compute the same.

The intermediate dimension (1536) is cut into 12 slices of 128. A SwiGLU is a sum over its
intermediate columns, so the slices' outputs add up to the dense output. Slices 0-3 become the shared
expert. Slices 4-11 become 8 routed experts, each stored twice (e and e + 8) with opposite router rows:
for any token exactly one copy of each pair has sigmoid score > 0.5, so the 8 best are one copy of
every slice, *which* copy depends on the token, and the normalised weights, times the scaling factor 8,
are all 1 to within the tiny spread of the scores.
"""

import numpy as np

from .bfloat16 import round_to_bfloat16

SLICE_WIDTH = 128
NUM_SHARED_SLICES = 4
NUM_PAIRS = 8
NUM_EXPERTS = 2 * NUM_PAIRS
TOP_K = NUM_PAIRS
ROUTED_SCALING_FACTOR = float(TOP_K)
# Large enough that fp32 scores of the two copies differ for every token, small enough that the
# weights stay within 5e-4 of 1. A router that rounds its scores to bfloat16 fails on this model.
ROUTER_STD = 2e-4
_SEED = 20250207


def _columns(dense: dict[str, np.ndarray], begin: int, end: int, prefix: str) -> dict[str, np.ndarray]:
    return {
        prefix + "gate_proj.weight": dense["mlp.gate_proj.weight"][begin:end],
        prefix + "up_proj.weight": dense["mlp.up_proj.weight"][begin:end],
        prefix + "down_proj.weight": np.ascontiguousarray(dense["mlp.down_proj.weight"][:, begin:end]),
    }


def router_rows(layer: int, hidden_size: int) -> np.ndarray:
    """bfloat16 (uint16) [NUM_EXPERTS, hidden]: row e + NUM_PAIRS is the negative of row e."""
    generator = np.random.Generator(np.random.PCG64([_SEED, layer]))
    rows = (ROUTER_STD * generator.standard_normal((NUM_PAIRS, hidden_size))).astype(np.float32)
    return np.concatenate([round_to_bfloat16(rows), round_to_bfloat16(-rows)])


def split_into_experts(dense: dict[str, np.ndarray], layer: int) -> dict[str, np.ndarray]:
    """Replaces the three mlp.*_proj of `dense` (bfloat16 bits) by router, shared and routed experts."""
    hidden_size, width = dense["mlp.down_proj.weight"].shape
    if width != SLICE_WIDTH * (NUM_SHARED_SLICES + NUM_PAIRS):
        raise ValueError(f"layer {layer}: intermediate size {width}")
    shared_width = NUM_SHARED_SLICES * SLICE_WIDTH
    tensors = {name: value for name, value in dense.items() if not name.startswith("mlp.")}
    tensors["mlp.gate.weight"] = router_rows(layer, hidden_size)
    # fp32 as published checkpoints of this architecture have it.
    tensors["mlp.gate.e_score_correction_bias"] = np.zeros(NUM_EXPERTS, dtype=np.float32)
    tensors |= _columns(dense, 0, shared_width, "mlp.shared_experts.")
    for expert in range(NUM_EXPERTS):
        begin = shared_width + (expert % NUM_PAIRS) * SLICE_WIDTH
        tensors |= _columns(dense, begin, begin + SLICE_WIDTH, f"mlp.experts.{expert}.")
    return tensors
