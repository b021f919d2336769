#pragma once

#include <cstddef>
#include <cstdint>

#include "libs/base/float16.h"
#include "libs/model/dtype.h"

namespace atelier {

class DeviceMatrix;

// Arguments of device operations: plain structs of device pointers with their shapes. T = rows of
// the step, H = hidden size. Activations are fp32 row-major; a stride is in elements. Every pointer
// must stay valid until the stream has passed the op.

// out[t, :] = table[tokens[t], :]
struct EmbedArgs {
  const int32_t* tokens;  // [T]
  const BFloat16* table;  // [vocab, H]
  float* out;             // [T, H]
  int rows;
  int hidden;
};

// out[r, :] = x[r, :] / sqrt(mean(x[r, :]^2) + eps) * weight
struct RmsNormArgs {
  const float* x;       // [rows, width]
  const float* weight;  // [width]
  float* out;           // [rows, width]; may be x
  int rows;
  int width;
  float eps;
};

// RMSNorm of every head of every row, in place.
struct HeadNormArgs {
  float* x;  // head h of row r at x + r * row_stride + h * head_dim
  size_t row_stride;
  const float* weight;  // [head_dim]
  int rows;
  int heads;
  int head_dim;
  float eps;
};

// cos and sin of position * theta^(-2 i / rotary_dim), i in [0, rotary_dim / 2); once per step, for
// all layers.
struct RopeTableArgs {
  const int32_t* positions;  // [rows]
  float* cos_sin;            // [rows, rotary_dim]: first half cosines, second half sines
  int rows;
  int rotary_dim;
  double theta;
};

// Rotates the first rotary_dim dims of every head in place, pairing dims i and i + rotary_dim / 2,
// or 2i and 2i + 1.
struct RopeArgs {
  float* x;  // as in HeadNormArgs
  size_t row_stride;
  const float* cos_sin;  // [rows, rotary_dim] of RopeTable
  int rows;
  int heads;
  int head_dim;
  int rotary_dim;
  bool interleaved = false;  // pairs of neighbours
};

// out[r, n] = sum_k x[r, k] * weight[n, k] + bias[n]; x is rounded to bf16 first.
struct LinearArgs {
  const float* x;  // [rows, k]
  size_t x_stride;
  const DeviceMatrix* weight;  // [n, k]
  const float* bias;           // [n] or null
  float* out;                  // [rows, n]
  size_t out_stride;           // >= n
  int rows;
};

// The paged KV cache of one layer. Block b holds, per KV head, block_size keys (values) of head_dim
// elements: element (b, head, slot, j) at ((b * kv_heads + head) * block_size + slot) * head_dim +
// j. bf16.
struct KvCacheView {
  BFloat16* keys;
  BFloat16* values;
  int kv_heads;
  int head_dim;
  int block_size;  // tokens
};

// Stores the step's keys and values, rounded to bf16.
struct KvWriteArgs {
  const float* keys;    // head h of row r at keys + r * row_stride + h * head_dim
  const float* values;  // likewise
  size_t row_stride;
  const int64_t* slots;  // [rows]: block * block_size + slot in the block
  KvCacheView cache;
  int rows;
};

// Causal grouped-query attention over the cache: row r, at position positions[r] of sequence
// sequences[r], sees positions 0 … positions[r] of that sequence, whose block i is
// block_tables[sequence * max_blocks + i]. Scores are scaled by head_dim^-0.5. The order of the sum
// depends on the position alone.
struct AttentionArgs {
  const float* queries;  // head h of row r at queries + r * row_stride + h * head_dim
  size_t row_stride;
  const int32_t* sequences;     // [rows]
  const int32_t* positions;     // [rows]
  const int32_t* block_tables;  // [num_sequences, max_blocks]
  int max_blocks;
  KvCacheView cache;
  float* out;  // [rows, heads * head_dim]
  int rows;
  int heads;  // a multiple of cache.kv_heads
};

// out[r, i] = silu(gate_up[r, i]) * gate_up[r, intermediate + i]
struct SwiGluArgs {
  const float* gate_up;  // [rows, 2 * intermediate]
  float* out;            // [rows, intermediate]; may not overlap gate_up
  int rows;
  int intermediate;
};

// logits[r, e] = sum_j x[r, j] * weight[e, j], all in fp32 (bf16 products would choose other
// experts).
struct RouterLogitsArgs {
  const float* x;       // [rows, hidden]
  const float* weight;  // [experts, hidden]
  float* logits;        // [rows, experts]
  int rows;
  int hidden;
  int experts;
};

// How a row of logits becomes choices; the fields are MoeConfig's. Equal values: the lower index
// wins. NaN counts as -infinity.
struct RouteArgs {
  const float* logits;           // [rows, experts]
  const float* correction_bias;  // [experts] or null
  int32_t* ids;                  // [rows, top_k], best first
  float* weights;                // [rows, top_k], routed_scaling_factor folded in
  int rows;
  int experts;
  int top_k;
  bool sigmoid;  // else softmax
  bool normalize_weights;
  float normalize_epsilon;
  float scaling_factor;
  int num_groups;  // of at least two experts each, or 1
  int top_k_groups;
};

// x[i] += y[i]
struct AddArgs {
  float* x;
  const float* y;
  size_t count;
};

// x[r, :] *= sigmoid(gate[r])
struct GateRowsArgs {
  float* x;           // [rows, width]
  const float* gate;  // [rows]
  int rows;
  int width;
};

// out[i, :] = x[indices[i], :]
struct GatherRowsArgs {
  const float* x;          // [*, width]
  const int32_t* indices;  // [rows]
  float* out;              // [rows, width]
  int rows;
  int width;
};

// out[indices[i], :] += weights[i] * x[i, :]; no index comes twice.
struct AddWeightedRowsArgs {
  const float* x;          // [rows, width]
  const int32_t* indices;  // [rows]
  const float* weights;    // [rows]
  float* out;              // [*, width]
  int rows;
  int width;
};

struct ToBFloat16Args {
  const float* x;
  BFloat16* out;
  size_t count;
};

// A row-major matrix in host memory (a mapped file), to be loaded onto a device.
struct HostMatrix {
  DType dtype = DType::kBF16;  // kBF16, kF16 or kF32
  const void* data = nullptr;  // may be unaligned
  int rows = 0;
  int columns = 0;
};

}  // namespace atelier
