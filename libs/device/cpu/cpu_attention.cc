#include <algorithm>
#include <cmath>
#include <limits>

#include "libs/base/check.h"
#include "libs/device/cpu/cpu_ops.h"

namespace atelier::cpu_ops {
namespace {

constexpr int kMaxBlockSize = 256;
constexpr int64_t kMinWorkPerPiece = int64_t{1} << 15;  // multiply-adds

size_t CacheOffset(const KvCacheView& cache, int64_t block, int head, int slot) {
  const int64_t row = (block * cache.kv_heads + head) * cache.block_size + slot;
  return static_cast<size_t>(row) * static_cast<size_t>(cache.head_dim);
}

const uint16_t* Bits(const BFloat16* values) { return reinterpret_cast<const uint16_t*>(values); }

// Softmax(scores) times values in one pass over the blocks: the running sum is rescaled when a
// block raises the maximum (Milakov and Gimelshein, 2018). The pieces are KV blocks, so their order
// depends on nothing but the position.
class RunningSoftmax {
 public:
  RunningSoftmax(float* sums, int head_dim) : sums_(sums), head_dim_(head_dim) {
    std::fill_n(sums, head_dim, 0.0f);
  }

  void Add(const RowKernels& kernels, float* scores, const uint16_t* values, int count) {
    const float block_max = *std::max_element(scores, scores + count);
    if (block_max > max_) {
      Rescale(std::exp(max_ - block_max));
      max_ = block_max;
    }
    for (int i = 0; i < count; ++i) {
      scores[i] = std::exp(scores[i] - max_);
      total_ += scores[i];
    }
    kernels.add_weighted_bf16(scores, values, static_cast<size_t>(head_dim_), count, head_dim_,
                              sums_);
  }

  void Finish() {
    const float inverse = 1.0f / total_;
    for (int j = 0; j < head_dim_; ++j) sums_[j] *= inverse;
  }

 private:
  void Rescale(float factor) {
    total_ *= factor;
    for (int j = 0; j < head_dim_; ++j) sums_[j] *= factor;
  }

  float* sums_;
  int head_dim_;
  float max_ = -std::numeric_limits<float>::infinity();
  float total_ = 0;
};

void AttendOneHead(const CpuContext& cpu, const AttentionArgs& args, int row, int head) {
  const KvCacheView& cache = args.cache;
  const int kv_head = head / (args.heads / cache.kv_heads);
  const float* query = args.queries + static_cast<size_t>(row) * args.row_stride +
                       static_cast<size_t>(head) * static_cast<size_t>(cache.head_dim);
  const int32_t* table = args.block_tables + static_cast<size_t>(args.sequences[row]) *
                                                 static_cast<size_t>(args.max_blocks);
  const int num_keys = args.positions[row] + 1;
  const float scale = 1.0f / std::sqrt(static_cast<float>(cache.head_dim));
  float* out = args.out + (static_cast<size_t>(row) * static_cast<size_t>(args.heads) +
                           static_cast<size_t>(head)) *
                              static_cast<size_t>(cache.head_dim);
  RunningSoftmax softmax(out, cache.head_dim);
  float scores[kMaxBlockSize];
  for (int first = 0; first < num_keys; first += cache.block_size) {
    const int count = std::min(cache.block_size, num_keys - first);
    const size_t offset = CacheOffset(cache, table[first / cache.block_size], kv_head, 0);
    cpu.rows.dot_bf16(query, Bits(cache.keys + offset), static_cast<size_t>(cache.head_dim), count,
                      cache.head_dim, scores);
    for (int i = 0; i < count; ++i) scores[i] *= scale;
    softmax.Add(cpu.rows, scores, Bits(cache.values + offset), count);
  }
  softmax.Finish();
}

}  // namespace

void KvWrite(const CpuContext&, const KvWriteArgs& args) {
  const KvCacheView& cache = args.cache;
  for (int r = 0; r < args.rows; ++r) {
    const int64_t block = args.slots[r] / cache.block_size;
    const int slot = static_cast<int>(args.slots[r] % cache.block_size);
    for (int h = 0; h < cache.kv_heads; ++h) {
      const size_t to = CacheOffset(cache, block, h, slot);
      const size_t from = static_cast<size_t>(r) * args.row_stride +
                          static_cast<size_t>(h) * static_cast<size_t>(cache.head_dim);
      for (size_t j = 0; j < static_cast<size_t>(cache.head_dim); ++j) {
        cache.keys[to + j] = atelier::ToBFloat16(args.keys[from + j]);
        cache.values[to + j] = atelier::ToBFloat16(args.values[from + j]);
      }
    }
  }
}

void Attention(const CpuContext& cpu, const AttentionArgs& args) {
  ATELIER_CHECK(args.cache.block_size <= kMaxBlockSize && args.heads % args.cache.kv_heads == 0);
  if (args.rows == 0) return;
  const int64_t longest = *std::max_element(args.positions, args.positions + args.rows) + 1;
  const int64_t grain = std::max<int64_t>(1, kMinWorkPerPiece / (longest * args.cache.head_dim));
  cpu.threads.ParallelFor(int64_t{args.rows} * args.heads, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      AttendOneHead(cpu, args, static_cast<int>(i / args.heads), static_cast<int>(i % args.heads));
    }
  });
}

}  // namespace atelier::cpu_ops
