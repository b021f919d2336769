#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "libs/transport/worker_protocol.h"

namespace atelier {

// A worker as the client knows it.
struct DescribedWorker {
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

// One shard of a layer and who holds it. (One worker today; a list of replicas would stand here.)
struct RoutedShard {
  size_t worker = 0;  // index into the workers that the table was built from
  int shard = 0;      // index into that worker's description
  int expert_begin = 0;
  int expert_end = 0;  // exclusive
  int slice_index = 0;
  int slice_count = 1;
};

// Which worker holds which part of every layer. A plain value: built once from descriptions, never
// changed.
class RoutingTable {
 public:
  // FAILED_PRECONDITION naming workers and values when models, sizes or expert counts differ, when
  // some (layer, expert, slice) is held by nobody, or by two. Every problem is in the message.
  static absl::StatusOr<RoutingTable> Build(const std::vector<DescribedWorker>& workers,
                                            const RoutingNeeds& needs);

  // The shards of a layer in the order in which their sums are added: by first expert, then slice.
  // That order does not depend on the order of the workers. Null for a layer without experts.
  const std::vector<RoutedShard>* Layer(int layer) const;

  int hidden_size() const { return hidden_size_; }
  int num_experts() const { return num_experts_; }
  const std::string& model_digest() const { return model_digest_; }

 private:
  int hidden_size_ = 0;
  int num_experts_ = 0;
  std::string model_digest_;
  std::map<int, std::vector<RoutedShard>> layers_;
};

}  // namespace atelier
