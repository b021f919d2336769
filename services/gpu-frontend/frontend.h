#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "libs/base/clock.h"
#include "libs/base/log.h"
#include "libs/metrics/metrics.h"
#include "libs/metrics/observability_server.h"
#include "prometheus/registry.h"
#include "services/gpu-frontend/api/api_server.h"
#include "services/gpu-frontend/loaded_model.h"
#include "services/gpu-frontend/options.h"

namespace atelier {

// Each state promises: kLoading: both ports are open, every request is UNAVAILABLE. kServing: the
// model answers, and said so only after it could. kDraining: health said "not serving" before the
// first request is refused; running ones go on. kStopped: nothing is in flight.
enum class FrontendState { kStarting, kLoading, kServing, kDraining, kStopped };
absl::string_view FrontendStateName(FrontendState state);

// The process, but for flags and signals: ports, the model, and their order at start and end. Load
// and Drain are called from one thread at a time each; the rest is thread-safe.
class Frontend {
 public:
  // Opens the ports, so that a taken one is found before a model is loaded. `options` must be
  // resolved. UNAVAILABLE names an address that cannot be listened on.
  static absl::StatusOr<std::unique_ptr<Frontend>> Start(const FrontendOptions& options,
                                                         ModelLoader loader, Clock& clock,
                                                         const Logger& logger);
  ~Frontend();

  // Loads the model and serves it. Blocks until requests are taken (kServing) or it cannot be done
  // (kStopped).
  absl::Status Load();
  // Refuses new requests, waits until running ones have ended, the drain timeout has passed or
  // `hurry` returns true (it is asked every few milliseconds), then ends the rest. Blocks.
  void Drain(const std::function<bool()>& hurry);

  FrontendState state() const;
  // As bound, with real ports.
  std::string address() const;
  std::string metrics_address() const;

 private:
  Frontend(const FrontendOptions& options, ModelLoader loader, Clock& clock, const Logger& logger);

  absl::Status Listen();
  absl::Status LoadAndPublish();
  // OK also where a checkpoint comes without tokenizer files, which is warned of.
  absl::Status CheckTokenizer(const absl::Status& packed) const;
  absl::Status Publish(absl::StatusOr<TokenizerArchive> tokenizer);
  absl::Status Ready() const;
  void ReportWaiting(const std::string& what);
  // Forward only; false when `next` or a later state was reached already.
  bool Advance(FrontendState next);
  absl::StatusOr<ServedModel> DescribeModel() const;

  const FrontendOptions options_;
  const ModelLoader loader_;
  Clock& clock_;
  const Logger& logger_;
  prometheus::Registry registry_;
  FrontendMetrics metrics_;
  ClientMetrics client_metrics_;

  mutable absl::Mutex mutex_;
  FrontendState state_ ABSL_GUARDED_BY(mutex_) = FrontendState::kStarting;
  std::string waiting_for_ ABSL_GUARDED_BY(mutex_);  // while loading; empty = nothing

  // Written by Load before kServing is reached, read by others only from then on.
  std::unique_ptr<LoadedModel> model_;
  std::unique_ptr<ApiServer> api_;
  std::unique_ptr<ObservabilityServer> observability_;
};

}  // namespace atelier
