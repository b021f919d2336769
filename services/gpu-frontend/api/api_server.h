#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "libs/base/clock.h"
#include "libs/base/log.h"
#include "services/gpu-frontend/api/served_model.h"
#include "services/gpu-frontend/api/tokenizer_archive.h"
#include "services/gpu-frontend/engine/engine.h"

namespace atelier {

struct ApiServerOptions {
  std::string listen;       // "host:port" or "[v6]:port"; port 0 = any free one
  int stream_interval = 1;  // tokens per streamed chunk, at least
};

// What answers once the model is loaded.
struct ApiBackend {
  Engine* engine = nullptr;  // must outlive ApiServer::Shutdown
  ServedModel model;
  // NOT_FOUND where the model has no tokenizer files: GetTokenizer then answers that.
  absl::StatusOr<TokenizerArchive> tokenizer = TokenizerArchive();
};

// The gRPC face of the frontend: SglangScheduler, grpc.health.v1 (for "" and the service's name)
// and reflection. Listens at once, so that a taken port is found before a model is loaded, and
// answers UNAVAILABLE until Serve. Thread-safe; owned by the frontend.
class ApiServer {
 public:
  // UNAVAILABLE names an address that cannot be listened on.
  static absl::StatusOr<std::unique_ptr<ApiServer>> Start(const ApiServerOptions& options,
                                                          Clock& clock, const Logger& logger);
  virtual ~ApiServer() = default;

  virtual int port() const = 0;
  // What loading waits for ("" = nothing), told to requests that come too early.
  virtual void SetLoading(const std::string& what) = 0;
  // From here on requests are taken. Called once.
  virtual void Serve(ApiBackend backend) = 0;
  // Says "not serving" to every kind of health check; calls in flight go on, new requests are for
  // the engine to refuse.
  virtual void Drain() = 0;
  // Stops listening, lets calls in flight end until `grace` has passed, then cancels them. No call
  // refers to the engine afterwards. Blocks. Idempotent.
  virtual void Shutdown(absl::Duration grace) = 0;
};

}  // namespace atelier
