#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "libs/base/endpoint.h"
#include "prometheus/collectable.h"

namespace atelier {

struct ObservabilityOptions {
  Endpoint listen;  // TCP; port 0 = any free one
  const prometheus::Collectable* metrics =
      nullptr;  // usually the Registry; must outlive the server
  // Asked at every /readyz, from the server's threads: OK = ready, else the message is the reason.
  // Must not block.
  std::function<absl::Status()> ready;
};

// The HTTP port of a service for people and machines that watch it, apart from its work:
//   GET /metrics           Prometheus text format
//   GET /healthz, /health  200 while the process answers
//   GET /readyz            200 when ready, else 503 with the reason
// Thread-safe; owned by the service. Serves from construction to destruction, on threads of its
// own.
class ObservabilityServer {
 public:
  // INVALID_ARGUMENT for a Unix socket, UNIMPLEMENTED for IPv6 where the system's civetweb is built
  // without it (Debian's is), UNAVAILABLE naming the address when it cannot be bound.
  static absl::StatusOr<std::unique_ptr<ObservabilityServer>> Start(
      const ObservabilityOptions& options);
  // Waits for requests being answered.
  virtual ~ObservabilityServer() = default;

  // As bound, with the real port.
  virtual const Endpoint& endpoint() const = 0;
};

}  // namespace atelier
