#pragma once

#include <functional>
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

// A request encoded once, immutable from then on, so that the same bytes can go to several workers,
// now or again.
class EncodedForward {
 public:
  virtual ~EncodedForward() = default;
};

struct ForwardEncoding {
  int layer = 0;
  TokenBatch batch;
  Routing routing;
  DType output_dtype = DType::kF32;
  CallPriority priority = CallPriority::kDecode;
  std::string model_digest;
  // Which rows of batch and routing to send, in this order; null = all.
  const std::vector<int>* rows = nullptr;
};
std::shared_ptr<const EncodedForward> EncodeForward(const ForwardEncoding& encoding);

// A call in flight on a connection. Destroying it abandons the call: `done` will not run afterwards
// (and is not running when the destructor returns, unless the destructor runs inside it), and the
// worker is told.
class ForwardInFlight {
 public:
  virtual ~ForwardInFlight() = default;

  // For one who is about to wait: looks for the answer on this thread for a moment, which spares
  // the hand-over from a transport's thread. `done` may run inside. Returns soon, answered or not;
  // at once where the transport gains nothing from it.
  virtual void AwaitBriefly() {}
};

// One client's way to one worker, whatever the transport: today gRPC (TCP or a Unix socket), one
// ForwardStream held open. Reconnects by itself with backoff (100 ms doubling to 1 s, jittered).
// A batch beyond the worker's limits goes out as several messages; `done` sees one reply whose sums
// are in the order of the worker's shards of the layer. Every error names the worker.
// Thread-safe. Callbacks come from transport threads, or from inside the call that they answer, and
// must not block; the destructor must not run inside one.
class WorkerConnection {
 public:
  using DoneCallback = std::function<void(ForwardReply)>;
  // Told when the worker becomes usable (its description, again after every reconnect), when it
  // holds other shards (likewise; calls under way keep those that they were sent for), when it is
  // lost, and why each attempt to reach it failed. Never concurrently.
  using StateCallback = std::function<void(const absl::StatusOr<WorkerDescription>&)>;

  // Starts connecting at once and returns. `on_state` may be called before this returns.
  static std::unique_ptr<WorkerConnection> Create(const std::string& address, Clock& clock,
                                                  const Logger& logger, StateCallback on_state,
                                                  const ClientSecurity& security = {});
  virtual ~WorkerConnection() = default;

  virtual const std::string& address() const = 0;
  // Fails through `done` with UNAVAILABLE at once when there is no connection, or when it breaks;
  // DEADLINE_EXCEEDED when `deadline` passes (enforced here too, so a frozen worker cannot hold a
  // caller).
  virtual std::unique_ptr<ForwardInFlight> Forward(std::shared_ptr<const EncodedForward> request,
                                                   absl::Time deadline, DoneCallback done) = 0;

  // Asks the worker whether it is there, beside its calls and independent of how busy it is with
  // them. `heard` runs if and when it says so, on a thread of the connection; not after the
  // connection was lost. Those who ask while it is being asked share the answer.
  virtual void AskForSign(std::function<void()> heard) = 0;

  // Hangs up and connects anew, as if the connection had been lost for that reason.
  virtual void Reset(const absl::Status& reason) = 0;
};

}  // namespace atelier
