#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "bench/support/synthetic_experts.h"
#include "services/expert-worker/layer_batch.h"

namespace atelier {

// kBalanced deals experts like cards, so that their row counts differ by at most one; kSkewed draws
// them by Zipf's law (the n-th most popular expert with weight 1 / n).
enum class RoutingKind { kBalanced, kSkewed };
absl::string_view RoutingName(RoutingKind kind);  // "balanced", "skewed"

// Random hidden states and their routing, owned.
class RoutedBatch {
 public:
  RoutedBatch(const LayerShape& shape, int num_tokens, RoutingKind kind, uint32_t seed);

  LayerBatch View(int layer) const;
  int num_activated() const { return num_activated_; }  // distinct experts

 private:
  int num_tokens_;
  int hidden_;
  int top_k_;
  int num_activated_ = 0;
  std::vector<BFloat16> rows_;
  std::vector<int32_t> expert_ids_;
  std::vector<float> weights_;
};

}  // namespace atelier
