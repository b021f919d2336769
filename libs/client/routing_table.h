#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "libs/transport/worker_protocol.h"

namespace atelier {

// A worker as the client knows it.
struct DescribedWorker {
  size_t number = 0;  // the caller's, by which the table names the worker
  std::string address;
  WorkerDescription description;
};

// What the caller needs of the workers together. Empty or 0 = whatever they agree on.
struct RoutingNeeds {
  std::string model_digest;
  int hidden_size = 0;
  int num_experts = 0;
  std::vector<int> moe_layers;
};

// A worker that holds a shard.
struct ShardReplica {
  size_t worker = 0;  // DescribedWorker::number
  int shard = 0;      // index into that worker's description
};

// One shard of a layer and who holds it: any one of its replicas answers with the same bits.
struct RoutedShard {
  int expert_begin = 0;
  int expert_end = 0;  // exclusive
  int slice_index = 0;
  int slice_count = 1;
  std::vector<ShardReplica> replicas;  // at least one
};

// Shards of a layer that the same workers hold, so that one call to one of them answers for all.
struct ReplicaGroup {
  std::vector<size_t> workers;  // ascending
  std::vector<size_t> shards;   // indexes into RoutedLayer::shards, ascending
  // Some of the workers hold further shards of the layer, which other groups ask for.
  bool holds_more = false;
};

struct RoutedLayer {
  // In the order in which their sums are added: by first expert, then slice. That order does not
  // depend on the order of the workers.
  std::vector<RoutedShard> shards;
  std::vector<ReplicaGroup> groups;
};

// Which worker holds which part of every layer. A plain value: built once from descriptions, never
// changed.
class RoutingTable {
 public:
  // FAILED_PRECONDITION naming workers and values when models, sizes or expert counts differ, when
  // some (layer, expert, slice) is held by nobody, or in two different cuts, or when replicas of a
  // shard keep it by different methods. Every problem is in the message. Workers that hold exactly
  // the same shard of a layer are its replicas.
  static absl::StatusOr<RoutingTable> Build(const std::vector<DescribedWorker>& workers,
                                            const RoutingNeeds& needs);

  // Null for a layer without experts.
  const RoutedLayer* Layer(int layer) const;
  // Whether the layers of this table are in the same shards in `other`, so that sums are added in
  // the same order.
  bool HasSamePartsIn(const RoutingTable& other) const;
  // The sets of workers of which one must be there: those of all layers' groups, each once.
  const std::vector<std::vector<size_t>>& groups() const { return groups_; }

  int hidden_size() const { return hidden_size_; }
  int num_experts() const { return num_experts_; }
  const std::string& model_digest() const { return model_digest_; }

 private:
  int hidden_size_ = 0;
  int num_experts_ = 0;
  std::string model_digest_;
  std::map<int, RoutedLayer> layers_;
  std::vector<std::vector<size_t>> groups_;
};

}  // namespace atelier
