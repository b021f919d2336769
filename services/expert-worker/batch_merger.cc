#include "services/expert-worker/batch_merger.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "libs/base/check.h"

namespace atelier {
namespace {

// Copies [T, k] routing into columns [0, k) of [T, wide_k]; the rest is skipped by the executor.
void CopyRouting(const Routing& from, int wide_k, int32_t* ids, float* weights) {
  const auto k = static_cast<size_t>(from.top_k);
  const auto wide = static_cast<size_t>(wide_k);
  for (size_t token = 0; token < static_cast<size_t>(from.num_tokens); ++token) {
    int32_t* const id_row = ids + token * wide;
    float* const weight_row = weights + token * wide;
    std::copy_n(from.expert_ids + token * k, k, id_row);
    std::copy_n(from.weights + token * k, k, weight_row);
    std::fill(id_row + k, id_row + wide, -1);
    std::fill(weight_row + k, weight_row + wide, 0.0f);
  }
}

}  // namespace

LayerBatch BatchMerger::Merge(std::vector<QueuedCall>& calls) {
  ATELIER_CHECK(!calls.empty());
  const ForwardRequest& first = calls.front().request;
  if (calls.size() == 1) return {first.layer, first.batch, first.routing};
  std::stable_partition(calls.begin(), calls.end(), [](const QueuedCall& call) {
    return call.request.batch.num_quantized == 0;
  });
  return {first.layer, MergeRows(calls), MergeRouting(calls)};
}

TokenBatch BatchMerger::MergeRows(const std::vector<QueuedCall>& calls) {
  TokenBatch merged;
  merged.hidden_size = calls.front().request.batch.hidden_size;
  merged.quantized_form = calls.back().request.batch.quantized_form;
  for (const QueuedCall& call : calls) {
    merged.num_tokens += call.request.batch.num_tokens;
    merged.num_quantized += call.request.batch.num_quantized;
  }
  const auto hidden = static_cast<size_t>(merged.hidden_size);
  const auto quantized = static_cast<size_t>(merged.num_quantized);
  const size_t num_scales =
      quantized == 0 ? 0 : ScalesPerRow(merged.quantized_form, merged.hidden_size);
  const size_t bf16 = static_cast<size_t>(merged.num_tokens) - quantized;
  auto* rows = reinterpret_cast<BFloat16*>(rows_.Reserve(bf16 * hidden * sizeof(BFloat16)));
  int8_t* codes = codes_.Reserve(quantized * hidden);
  float* scales = scales_.Reserve(quantized * num_scales);
  merged.rows = rows;
  merged.codes = codes;
  merged.scales = scales;
  for (const QueuedCall& call : calls) {
    const TokenBatch& batch = call.request.batch;
    const auto count = static_cast<size_t>(batch.num_tokens);
    if (batch.num_quantized == 0) {
      rows = std::copy_n(batch.rows, count * hidden, rows);
    } else {
      codes = std::copy_n(batch.codes, count * hidden, codes);
      scales = std::copy_n(batch.scales, count * num_scales, scales);
    }
  }
  return merged;
}

Routing BatchMerger::MergeRouting(const std::vector<QueuedCall>& calls) {
  int num_tokens = 0;
  int top_k = 0;
  for (const QueuedCall& call : calls) {
    num_tokens += call.request.batch.num_tokens;
    top_k = std::max(top_k, call.request.routing.top_k);
  }
  const auto routes = static_cast<size_t>(num_tokens) * static_cast<size_t>(top_k);
  int32_t* ids = expert_ids_.Reserve(routes);
  float* weights = weights_.Reserve(routes);
  const Routing merged{num_tokens, top_k, ids, weights};
  for (const QueuedCall& call : calls) {
    const auto count = static_cast<size_t>(call.request.batch.num_tokens);
    CopyRouting(call.request.routing, top_k, ids, weights);
    ids += count * static_cast<size_t>(top_k);
    weights += count * static_cast<size_t>(top_k);
  }
  return merged;
}

std::string EncodeSums(const float* sums, int row_begin, int num_rows, int hidden, DType dtype) {
  const float* const from = sums + static_cast<size_t>(row_begin) * static_cast<size_t>(hidden);
  const size_t count = static_cast<size_t>(num_rows) * static_cast<size_t>(hidden);
  if (dtype == DType::kF32) {
    return std::string(reinterpret_cast<const char*>(from), count * sizeof(float));
  }
  ATELIER_CHECK(dtype == DType::kBF16);
  std::string data(count * sizeof(BFloat16), '\0');
  for (size_t i = 0; i < count; ++i) {
    const BFloat16 value = ToBFloat16(from[i]);
    std::memcpy(data.data() + i * sizeof(value), &value, sizeof(value));
  }
  return data;
}

int CountNonFiniteRows(const std::vector<float*>& sums, int row_begin, int num_rows, int hidden) {
  int count = 0;
  for (int row = row_begin; row < row_begin + num_rows; ++row) {
    const size_t offset = static_cast<size_t>(row) * static_cast<size_t>(hidden);
    const bool finite = std::all_of(sums.begin(), sums.end(), [&](const float* shard) {
      return std::all_of(shard + offset, shard + offset + hidden,
                         [](float value) { return std::isfinite(value); });
    });
    count += finite ? 0 : 1;
  }
  return count;
}

}  // namespace atelier
