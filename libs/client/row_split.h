#pragma once

#include <cstddef>
#include <vector>

#include "absl/functional/function_ref.h"
#include "libs/client/routing_table.h"
#include "libs/model/token_batch.h"
#include "libs/transport/worker_protocol.h"

namespace atelier {

// Rows of a call that go to one replica of a group of shards.
struct CallPart {
  const ReplicaGroup* group = nullptr;  // of the layer that was split
  std::vector<size_t> replicas;         // those that may be asked, the one meant first
  std::vector<int> rows;                // of the batch, ascending; never empty
};

// Divides a call over the replicas of each group of the layer. Every row that has an expert in a
// group goes to exactly one replica, with all its experts: a row's sum over the experts of a shard
// has the same bits wherever it is computed, but sums of parts of these experts would not.
// Few rows are divided so that the replicas read about the same number of experts' weights, rows of
// the same experts together; many rows (where computing takes longer than reading) in equal runs.
// `replicas` names those of a group that may be asked, the preferred one first; it may be empty.
std::vector<CallPart> SplitRows(
    const RoutedLayer& layer, const Routing& routing, CallPriority priority,
    absl::FunctionRef<std::vector<size_t>(const ReplicaGroup&)> replicas);

// The routing with the experts that the group does not hold skipped: [T, k] ids.
std::vector<int32_t> MaskExperts(const RoutedLayer& layer, const ReplicaGroup& group,
                                 const Routing& routing);

}  // namespace atelier
