#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "libs/base/clock.h"
#include "libs/base/log.h"
#include "libs/transport/shm_segment.h"
#include "libs/transport/worker_protocol.h"

namespace atelier {

struct ShmServerOptions {
  std::string path;  // of the Unix socket, absolute
  // Whose processes may connect, by the kernel's word; empty = this process's own user only.
  std::vector<uint32_t> allowed_uids;
  int max_clients = 16;
  uint32_t num_slots = 16;  // calls of one client at once; a power of two
  int64_t bytes_per_client = int64_t{256} << 20;
  absl::Duration spin = absl::Microseconds(50);  // how long both sides look before they sleep
  int hidden_size = 0;
  int num_experts = 0;
  int top_k = 0;
  int shards_per_layer = 1;  // at most
  int max_tokens_per_call = 8192;
  absl::Duration default_timeout = absl::Seconds(60);  // of requests that bring no deadline
  ShmPlacement placement;
};

// Slots for as many rows as the options allow: INVALID_ARGUMENT when not even one row fits.
absl::StatusOr<ShmGeometry> ShmGeometryFor(const ShmServerOptions& options);

// Serves a handler over memory shared with each client. Thread-safe.
class ShmWorkerServer {
 public:
  // Starts listening. UNAVAILABLE says why not. `handler` and `clock` must outlive the server, and
  // the handler must have answered its calls, or be told to, before the server is destroyed.
  static absl::StatusOr<std::unique_ptr<ShmWorkerServer>> Start(const ShmServerOptions& options,
                                                                WorkerHandler& handler,
                                                                Clock& clock, const Logger& logger);
  virtual ~ShmWorkerServer() = default;

  virtual int num_clients() const = 0;
  // Stops accepting, lets calls in flight finish until `grace` has passed, then hangs up. Blocks.
  // Idempotent.
  virtual void Shutdown(absl::Duration grace) = 0;
};

}  // namespace atelier
