#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "services/gpu-frontend/loaded_model.h"

namespace atelier {

// The real model: checkpoint, expert workers, device, graph and engine, in the order of their
// dependence. Checks the whole checkpoint before it waits for workers, and waits for workers before
// it loads weights. See ModelLoader.
absl::StatusOr<std::unique_ptr<LoadedModel>> LoadModelStack(const FrontendOptions& options,
                                                            const LoaderContext& context);

}  // namespace atelier
