#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "libs/checkpoint/checkpoint.h"
#include "services/gpu-frontend/experts/remote_experts.h"
#include "services/gpu-frontend/loaded_model.h"

namespace atelier {

// The routed experts of a model, wherever they are computed. Owned by the model.
class ExpertSource {
 public:
  virtual ~ExpertSource() = default;
  virtual RemoteExperts& experts() = 0;
  // As LoadedModel's.
  virtual absl::Status Ready() const = 0;
};

// Blocks until every expert can be reached. The checkpoint and the context outlive the source.
using ExpertSourceMaker = std::function<absl::StatusOr<std::unique_ptr<ExpertSource>>(
    const FrontendOptions& options, const Checkpoint& checkpoint, const LoaderContext& context)>;

// The model over experts of `make_source`: checkpoint, experts, device, graph and engine, in the
// order of their dependence.
absl::StatusOr<std::unique_ptr<LoadedModel>> LoadModelOver(const ExpertSourceMaker& make_source,
                                                           const FrontendOptions& options,
                                                           const LoaderContext& context);

// The real model: checkpoint, expert workers, device, graph and engine, in the order of their
// dependence. Checks the whole checkpoint before it waits for workers, and waits for workers before
// it loads weights. See ModelLoader.
absl::StatusOr<std::unique_ptr<LoadedModel>> LoadModelStack(const FrontendOptions& options,
                                                            const LoaderContext& context);

}  // namespace atelier
