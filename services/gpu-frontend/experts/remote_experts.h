#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "libs/model/token_batch.h"

namespace atelier {

// One layer's routed experts under way.
class ExpertsInFlight {
 public:
  virtual ~ExpertsInFlight() = default;
  // Blocks until the weighted sums are there: out [T, H] fp32, overwritten. Errors as
  // ExpertClient's.
  virtual absl::Status Wait(float* out) = 0;
};

// Where the graph sends rows for the routed experts of a layer. Used by one thread at a time.
class RemoteExperts {
 public:
  virtual ~RemoteExperts() = default;
  // Starts and returns at once. The views may be reused when this returns. `prefill` marks work
  // that may wait behind decoding.
  virtual absl::StatusOr<std::unique_ptr<ExpertsInFlight>> Begin(int layer, const TokenBatch& batch,
                                                                 const Routing& routing,
                                                                 bool prefill) = 0;
};

}  // namespace atelier
