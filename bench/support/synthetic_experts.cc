#include "bench/support/synthetic_experts.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "libs/base/checked_math.h"
#include "libs/base/status_macros.h"
#include "libs/kernels/pack.h"

namespace atelier {
namespace {

constexpr size_t kFillBytes = size_t{1} << 20;

// Bytes from 0x20 to 0x3f: read as fp32, fp16, bf16 or E8M0 they are finite, normal and
// small, and as codes they are as good as any.
void FillRandom(uint8_t* data, size_t bytes, uint64_t seed) {
  std::mt19937_64 generator(seed);
  size_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    const uint64_t word = (generator() & 0x1f1f1f1f1f1f1f1f) | 0x2020202020202020;
    std::memcpy(data + i, &word, sizeof(word));
  }
  std::memset(data + i, 0x3c, bytes - i);
}

}  // namespace

std::string LayerShape::Name() const {
  return absl::StrCat("E", num_experts, " H", hidden, " I", inner, " k", top_k);
}

absl::StatusOr<size_t> PackedExpertBytes(Method method, const LayerShape& shape) {
  ATELIER_RETURN_IF_ERROR(ValidatePackedShape(method, shape.inner, shape.hidden));
  ATELIER_RETURN_IF_ERROR(ValidatePackedShape(method, shape.hidden, shape.inner));
  return 2 * PackedMatrixBytes(method, shape.inner, shape.hidden) +
         PackedMatrixBytes(method, shape.hidden, shape.inner);
}

absl::StatusOr<std::unique_ptr<SyntheticExperts>> SyntheticExperts::Create(Method method,
                                                                           const LayerShape& shape,
                                                                           size_t budget_bytes,
                                                                           NodeArena& arena) {
  ATELIER_ASSIGN_OR_RETURN(const size_t expert_bytes, PackedExpertBytes(method, shape));
  const size_t count = std::max<size_t>(1, budget_bytes / expert_bytes);
  ATELIER_ASSIGN_OR_RETURN(std::unique_ptr<NodeMemory> memory,
                           arena.Allocate(count * expert_bytes));
  const size_t bytes = memory->size();
  arena.ParallelFor(static_cast<int64_t>(CeilDiv(bytes, kFillBytes)), [&](int64_t i) {
    const size_t begin = static_cast<size_t>(i) * kFillBytes;
    FillRandom(memory->data() + begin, std::min(kFillBytes, bytes - begin),
               static_cast<uint64_t>(i));
  });
  std::unique_ptr<SyntheticExperts> store(new SyntheticExperts(method, shape, std::move(memory)));
  store->PlaceExperts(expert_bytes);
  return store;
}

void SyntheticExperts::PlaceExperts(size_t expert_bytes) {
  const size_t gate_bytes = PackedMatrixBytes(method_, shape_.inner, shape_.hidden);
  const uint8_t* const end = memory_->data() + memory_->size();
  for (const uint8_t* at = memory_->data(); at != end; at += expert_bytes) {
    ExpertView view;
    view.gate = PackedMatrixAt(method_, shape_.inner, shape_.hidden, at);
    view.up = PackedMatrixAt(method_, shape_.inner, shape_.hidden, at + gate_bytes);
    view.down = PackedMatrixAt(method_, shape_.hidden, shape_.inner, at + 2 * gate_bytes);
    experts_.push_back(view);
  }
  const size_t per_layer = static_cast<size_t>(shape_.num_experts);
  num_layers_ = static_cast<int>(std::max<size_t>(1, experts_.size() / per_layer));
  ShardSpec shard;
  for (int layer = 0; layer < num_layers_; ++layer) shard.layers.push_back(layer);
  shard.expert_end = shape_.num_experts;
  shards_.push_back(shard);
}

const ExpertView& SyntheticExperts::expert(int, int layer, int expert) const {
  return distinct(static_cast<size_t>(layer) * static_cast<size_t>(shape_.num_experts) +
                  static_cast<size_t>(expert));
}

}  // namespace atelier
