#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "libs/model/dtype.h"
#include "libs/model/shard.h"
#include "libs/model/token_batch.h"

// The wire of proto/atelier/v1 as plain values: generated types stop inside libs/transport.

namespace atelier {

enum class CallPriority { kDecode, kPrefill };

enum class WorkerState { kStarting, kLoading, kServing, kDraining, kStopped };
absl::string_view WorkerStateName(WorkerState state);

struct WorkerLimits {
  int max_tokens_per_call = 0;
  int64_t max_message_bytes = 0;
  int max_queued_calls = 0;
};

struct WorkerDescription {
  std::string version;
  WorkerState state = WorkerState::kStarting;
  uint64_t epoch = 0;
  std::string model_digest;
  std::string model_type;
  std::string method;
  std::string isa;
  int hidden_size = 0;
  int num_experts = 0;
  int top_k = 0;
  int intermediate_size = 0;
  std::vector<ShardSpec> shards;
  WorkerLimits limits;
  // The int8 form in which all its products take rows, so that they may come in it; kBf16 = none.
  ActivationForm quantized_rows = ActivationForm::kBf16;
};

// One layer's rows, decoded and validated against the wire's own rules (lengths agree with T, k,
// H).
struct ForwardRequest {
  uint64_t id = 0;
  int layer = 0;
  TokenBatch batch;                  // views into `owner`
  Routing routing;                   // likewise
  DType output_dtype = DType::kF32;  // kF32 or kBF16
  absl::Time deadline = absl::InfiniteFuture();
  CallPriority priority = CallPriority::kDecode;
  uint64_t epoch = 0;                 // 0 = any
  std::string model_digest;           // empty = any
  std::shared_ptr<const void> owner;  // keeps the views' memory
};

struct ShardSum {
  int shard = 0;     // index into WorkerDescription::shards
  std::string data;  // [T, H] of output_dtype, little-endian
};

struct ForwardReply {
  absl::Status status;
  std::vector<ShardSum> sums;
  absl::Duration queued;
  absl::Duration computed;
  int64_t non_finite_tokens = 0;
  // On a client's connection: by which the worker was asked, and sums count its shards. Else null.
  std::shared_ptr<const WorkerDescription> described;
};

// Says whether the caller has gone (disconnect, cancel); checked before work is started.
// Thread-safe.
class CallContext {
 public:
  virtual ~CallContext() = default;
  virtual bool Cancelled() const = 0;
};

// What a worker does; the transports call it. All methods are thread-safe and return at once, but
// Drain, Load and Unload.
class WorkerHandler {
 public:
  virtual ~WorkerHandler() = default;

  virtual WorkerDescription Describe() const = 0;
  // Calls `reply` exactly once, from any thread, also before it returns.
  virtual void Forward(ForwardRequest request, std::shared_ptr<const CallContext> context,
                       std::function<void(ForwardReply)> reply) = 0;
  // Told of each call that is refused before it becomes a ForwardRequest, for the handler's count.
  virtual void OnRefused(const absl::Status& /*status*/) {}
  // Blocks until nothing is in flight or `deadline`; the number of calls that finished meanwhile.
  virtual absl::StatusOr<int64_t> Drain(absl::Time deadline) = 0;

  // As the RPCs of control.proto; both block. What they end in is described then.
  virtual absl::StatusOr<WorkerDescription> Load(const std::vector<ShardSpec>& /*shards*/) {
    return absl::UnimplementedError("this worker holds what it was started with");
  }
  virtual absl::StatusOr<WorkerDescription> Unload(const std::vector<ShardSpec>& /*shards*/) {
    return absl::UnimplementedError("this worker holds what it was started with");
  }
};

}  // namespace atelier
