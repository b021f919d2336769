#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "libs/base/clock.h"
#include "libs/base/log.h"
#include "services/gpu-frontend/engine/model_runner.h"
#include "services/gpu-frontend/engine/request.h"

namespace atelier {

struct FrontendMetrics;

struct EngineOptions {
  int max_running_requests = 64;   // sequences computed in one step
  int max_queued_requests = 1024;  // waiting ones; one more is RESOURCE_EXHAUSTED
  int chunked_prefill_size = 512;  // prompt tokens per step, all sequences together, at most
  // What a step that several requests share should last at most: fewer prompt tokens then. 0 = no
  // bound by time.
  absl::Duration max_step_time = absl::Milliseconds(80);
  bool prefix_cache = true;        // reuse KV blocks of equal prompt prefixes
  int max_new_tokens_default = 0;  // 0 = the room left in the context
  std::vector<int32_t> eos_token_ids;
  uint64_t seed = 0;           // seeds requests that bring none
  int64_t kv_cache_bytes = 0;  // of the runner's blocks; only reported by Load()

  absl::Status Validate() const;
};

struct EngineLoad {
  int running = 0;
  int waiting = 0;
  int64_t used_tokens = 0;   // in KV blocks of running sequences
  int64_t total_tokens = 0;  // capacity
  int64_t waiting_uncached_tokens = 0;
  int max_running = 0;
  double tokens_per_second = 0;  // generated, over the last seconds
  double cache_hit_rate = 0;     // of prompt tokens
  int64_t kv_cache_bytes = 0;
};

// Continuous batching over one ModelRunner: a thread of its own runs steps while there is work and
// sleeps otherwise. Thread-safe.
class Engine {
 public:
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options,
                                                        ModelRunner& runner, Clock& clock,
                                                        const Logger& logger,
                                                        FrontendMetrics& metrics);
  // Ends all requests with UNAVAILABLE and joins the thread.
  virtual ~Engine() = default;

  // Queues the request; `sink` must outlive its last event. INVALID_ARGUMENT (names field and
  // value; a prompt longer than the context, a token id outside the vocabulary, an empty prompt),
  // ALREADY_EXISTS (id in flight), RESOURCE_EXHAUSTED (queue full), UNAVAILABLE (draining).
  virtual absl::Status Submit(GenerateRequest request, std::shared_ptr<RequestSink> sink) = 0;
  // Ends a request: with a last delta of FinishReason::kAbort per unfinished sequence. False if the
  // id is not in flight. Returns at once; the step under way is the last that computes it.
  virtual bool Abort(const std::string& id) = 0;
  // Refuses new requests from now on; running ones finish.
  virtual void Drain() = 0;
  // True when nothing is queued or running.
  virtual bool Idle() const = 0;
  // Drops unreferenced prefix blocks; false (and nothing dropped) while requests run.
  virtual bool FlushCache() = 0;
  virtual EngineLoad Load() const = 0;
};

}  // namespace atelier
