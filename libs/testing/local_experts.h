#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/kernels/kernel_table.h"
#include "libs/model/shard.h"
#include "services/gpu-frontend/experts/remote_experts.h"

namespace atelier::testing {

struct LocalExpertsOptions {
  Method method = Method::kBF16;  // of floats; what is published quantised keeps its methods
  CpuIsa cpu_isa = CpuIsa::kAuto;
  // As workers would hold them, in shard order; empty = one shard with everything. Their layers are
  // ignored: every MoE layer.
  std::vector<ShardSpec> shards;
};

// The routed experts of a checkpoint in this process, on one thread, by the real kernels: what
// workers behind a client answer, bit for bit (experts in ascending id within a shard, shards in
// order).
class LocalExperts : public RemoteExperts {
 public:
  static absl::StatusOr<std::unique_ptr<LocalExperts>> Create(const Checkpoint& checkpoint,
                                                              const LocalExpertsOptions& options);

  // The ids of all calls for a layer so far, [tokens * top_k] in the order of the calls.
  virtual const std::vector<int32_t>& RoutedIds(int layer) const = 0;
  // From now on calls for this layer fail in Wait with `status`, until OK is given.
  virtual void FailLayer(int layer, absl::Status status) = 0;
};

}  // namespace atelier::testing
