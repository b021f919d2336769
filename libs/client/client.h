#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "libs/base/clock.h"
#include "libs/base/log.h"
#include "libs/client/failover_options.h"
#include "libs/model/token_batch.h"
#include "libs/transport/security.h"
#include "libs/transport/worker_protocol.h"

namespace atelier {

struct ClientMetrics;

struct ClientOptions {
  // "host:port", "[v6]:port", "unix:/path" or "shm:/path". Order does not matter.
  std::vector<std::string> workers;
  // How long Connect waits for every needed shard to be described.
  absl::Duration connect_timeout = absl::Seconds(30);
  // Default deadline of one layer's call.
  absl::Duration call_timeout = absl::Seconds(10);
  // What the caller's own checkpoint says; a worker of another model is refused. Empty or 0 =
  // whatever the workers agree on.
  std::string model_digest;
  int hidden_size = 0;
  // (layer) for which experts are needed, and how many there are. Empty = the union of what the
  // workers hold.
  std::vector<int> moe_layers;
  int num_experts = 0;
  FailoverOptions failover;
  ClientSecurity security;  // towards workers over TCP

  absl::Status Validate() const;
};

struct WorkerInfo {
  std::string address;
  bool connected = false;
  std::string method;
  std::string isa;
  std::string shards;  // for people
};

struct ForwardCall {
  int layer = 0;
  TokenBatch batch;  // copied (encoded) before Forward returns
  Routing routing;   // likewise
  CallPriority priority = CallPriority::kDecode;
  absl::Duration timeout = absl::ZeroDuration();  // zero = ClientOptions::call_timeout
};

// One layer's call in flight. Destroying it abandons the call (workers are told).
class PendingForward {
 public:
  virtual ~PendingForward() = default;
  // Blocks until all shards have answered or one cannot. Writes sum over shards, added in shard
  // order in fp32, to out [T, H]. What one replica fails, or answers too late, is asked of another:
  // UNAVAILABLE when none of a shard is left, DEADLINE_EXCEEDED, or the last worker's own status;
  // the message names the workers.
  virtual absl::Status Wait(float* out) = 0;
};

// Calls the experts of a model that any number of workers hold. Discovers what each worker holds
// (Describe), watches their health, reconnects to a worker that comes back. Workers that hold the
// same shard are replicas: each call goes to one of them, and to another if that one fails or is
// late, without any effect on the result. Thread-safe. Calls never block on a dead worker: where
// it has no replica they fail at once.
class ExpertClient {
 public:
  // Blocks up to connect_timeout. FAILED_PRECONDITION names what does not fit (digest, hidden size,
  // uncovered experts of layers, overlapping shards); UNAVAILABLE names workers that did not
  // answer. A worker is not waited for when others hold all that it could.
  static absl::StatusOr<std::unique_ptr<ExpertClient>> Connect(const ClientOptions& options,
                                                               Clock& clock, const Logger& logger,
                                                               ClientMetrics* metrics);
  virtual ~ExpertClient() = default;

  // Sends the rows to a replica of every shard of the layer and returns at once. The result
  // must be destroyed before this client.
  virtual absl::StatusOr<std::unique_ptr<PendingForward>> Forward(const ForwardCall& call) = 0;

  virtual std::vector<WorkerInfo> Workers() const = 0;
  // OK when every needed shard has a connected worker (one replica); else UNAVAILABLE naming the
  // missing ones.
  virtual absl::Status Ready() const = 0;
};

}  // namespace atelier
