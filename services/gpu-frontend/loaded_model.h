#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "libs/base/clock.h"
#include "libs/base/log.h"
#include "libs/metrics/metrics.h"
#include "services/gpu-frontend/api/served_model.h"
#include "services/gpu-frontend/engine/engine.h"
#include "services/gpu-frontend/options.h"

namespace atelier {

// A model that can answer: an engine and all that stands behind it. Owned by the frontend;
// destroying it ends every request.
class LoadedModel {
 public:
  virtual ~LoadedModel() = default;

  virtual Engine& engine() = 0;
  // Of ServedModel the fields that the checkpoint and the device know; paths and names are the
  // frontend's.
  virtual ServedModel Describe() const = 0;
  // OK when every expert can be reached; else UNAVAILABLE naming what is missing. Thread-safe, does
  // not block.
  virtual absl::Status Ready() const = 0;
};

// What loading may use; outlives the model.
struct LoaderContext {
  Clock& clock;
  const Logger& logger;
  FrontendMetrics& metrics;
  ClientMetrics& client_metrics;
  // Told what is being waited for, for who asks meanwhile. Thread-safe, returns at once.
  std::function<void(const std::string& what)> report_waiting;
};

// Loads what `options` name. Blocks, for as long as reading the weights and waiting for the workers
// takes. Errors say what to do. Tests pass a loader of their own.
using ModelLoader = std::function<absl::StatusOr<std::unique_ptr<LoadedModel>>(
    const FrontendOptions& options, const LoaderContext& context)>;

}  // namespace atelier
