#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/kernels/cpu_features.h"
#include "libs/model/dtype.h"
#include "libs/model/expert_set.h"
#include "libs/model/shard.h"

namespace atelier::golden {

// How a golden test runs a model.
struct RunOptions {
  Method method = Method::kBF16;    // of the routed experts
  std::vector<ShardSpec> shards{};  // as workers would hold them; empty = one with everything
  CpuIsa cpu_isa = CpuIsa::kAuto;   // of frontend and experts
  int num_threads = 1;              // of the frontend's device
  int max_tokens_per_step = 512;    // prefill chunk
  int kv_cache_tokens = 4096;
  ExpertSet device_experts{};  // routed ones that the frontend computes itself
};

// The frontend's graph over the routed experts of this process: everything but wires and the
// scheduler. Not thread-safe. The checkpoint must outlive it.
class ModelUnderTest {
 public:
  static absl::StatusOr<std::unique_ptr<ModelUnderTest>> Create(const Checkpoint& checkpoint,
                                                                const RunOptions& options);
  virtual ~ModelUnderTest() = default;

  // Feeds `tokens` in chunks of at most max_tokens_per_step and calls visit(position, logits of
  // that position) for positions >= first, ascending. The cache is empty before.
  using Visitor = std::function<void(int position, absl::Span<const float> logits)>;
  virtual absl::Status TeacherForce(absl::Span<const int32_t> tokens, int first,
                                    const Visitor& visit) = 0;

  // All logits [T, vocabulary] of every sequence, computed in one step together. The sum of lengths
  // is at most max_tokens_per_step.
  virtual absl::StatusOr<std::vector<std::vector<float>>> TogetherInOneStep(
      const std::vector<std::vector<int32_t>>& sequences) = 0;

  // Greedy continuations of all prompts side by side, up to and with `eos`, at most max_tokens.
  virtual absl::StatusOr<std::vector<std::vector<int32_t>>> Greedy(
      const std::vector<std::vector<int32_t>>& prompts, int max_tokens, int32_t eos) = 0;
};

// Index of the largest, the lowest of equals.
int32_t ArgMax(absl::Span<const float> logits);

}  // namespace atelier::golden
