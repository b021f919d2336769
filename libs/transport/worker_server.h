#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "libs/base/clock.h"
#include "libs/base/log.h"
#include "libs/transport/security.h"
#include "libs/transport/worker_protocol.h"

namespace atelier {

struct WorkerServerOptions {
  // "host:port" (port 0 = any free one), "[v6]:port" or "unix:/path". At least one.
  std::vector<std::string> listen;
  int64_t max_message_bytes = int64_t{256} << 20;
  int hidden_size = 0;  // for checking payload lengths before the handler sees them
  int num_experts = 0;
  ActivationForm quantized_rows = ActivationForm::kBf16;  // as in WorkerDescription
  int max_tokens_per_call = 8192;
  ServerSecurity security;                             // of the TCP addresses
  absl::Duration default_timeout = absl::Seconds(60);  // of requests that bring no deadline
};

// The gRPC face of a worker: ExpertService, WorkerControl, grpc.health.v1 (for "",
// atelier.v1.ExpertService and atelier.v1.WorkerControl) and reflection. Thread-safe; owned by the
// service. Health starts as NOT_SERVING.
class WorkerServer {
 public:
  // Starts listening. UNAVAILABLE names an address that cannot be bound and why. `handler` must
  // outlive the server. A stale Unix socket file that nobody listens on is replaced; one that is in
  // use is an error.
  static absl::StatusOr<std::unique_ptr<WorkerServer>> Start(const WorkerServerOptions& options,
                                                             WorkerHandler& handler, Clock& clock,
                                                             const Logger& logger);
  virtual ~WorkerServer() = default;

  virtual void SetServing(bool serving) = 0;
  // The addresses as bound: ports filled in.
  virtual std::vector<std::string> Addresses() const = 0;
  // Stops accepting, lets calls in flight finish until `grace` has passed, then cancels them.
  // Blocks. Idempotent.
  virtual void Shutdown(absl::Duration grace) = 0;
};

}  // namespace atelier
