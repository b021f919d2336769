#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "libs/base/clock.h"
#include "libs/base/log.h"
#include "services/gpu-frontend/engine/engine.h"
#include "services/gpu-frontend/engine/kv_block_manager.h"
#include "services/gpu-frontend/engine/model_runner.h"
#include "services/gpu-frontend/engine/request.h"
#include "services/gpu-frontend/engine/request_limits.h"
#include "services/gpu-frontend/engine/sampler.h"
#include "services/gpu-frontend/engine/scheduler.h"
#include "services/gpu-frontend/engine/sequence.h"
#include "services/gpu-frontend/engine/step_pacer.h"
#include "services/gpu-frontend/engine/stop_rules.h"

namespace atelier {

// A request as it comes in: valid, and its id is not in flight.
struct SubmittedRequest {
  GenerateRequest request;
  std::shared_ptr<RequestSink> sink;  // shared with the adapter, which may outlive the request
  absl::Time submitted;
};

// The engine without its thread: requests in, one step after the other, events to the sinks during
// the calls. Not thread-safe; deterministic given its calls, seeds and logits.
class EngineCore {
 public:
  // `on_end` is called with a request's id just before its last event.
  EngineCore(const EngineOptions& options, ModelRunner& runner, Clock& clock, const Logger& logger,
             FrontendMetrics& metrics, std::function<void(const std::string&)> on_end);

  void Add(SubmittedRequest submitted);
  // A last delta of kAbort for each unfinished sequence; false if the id is unknown.
  bool Abort(const std::string& id);
  // Chooses what the next step computes; Load() and num_queued() tell it already. Nothing but
  // RunStep may follow. REQUIRES: !empty().
  void PlanStep();
  // Computes it. An error of the model ends the requests of that step, but for an interruption that
  // Interrupt() allowed: then nothing of the step counts. Returns the number of tokens generated.
  int RunStep();
  // While RunStep computes, on its thread: whether nobody wants its result, as all its requests are
  // among `aborted`. Whoever else shares the step would lose work, so for them it goes on.
  bool Interrupt(const std::vector<std::string>& aborted);
  void FailAll(const absl::Status& status);
  bool FlushCache();

  bool empty() const { return requests_.empty(); }
  int num_queued() const { return num_queued_; }  // requests that have not been computed yet
  EngineLoad Load() const;                        // all but tokens_per_second
  RequestLimits limits() const;
  absl::Status CheckInvariants() const;  // for tests

 private:
  struct Request {
    GenerateRequest request;
    std::shared_ptr<RequestSink> sink;
    absl::Time submitted;
    StopRules stops;
    uint64_t seed = 0;
    int max_new_tokens = 0;
    SequenceGroup sequences;
    int num_unfinished = 0;
    bool was_admitted = false;
    bool has_token = false;
    int num_cached = 0;  // prompt tokens the prefix cache held at the first admission
    std::vector<TokenLogprob> prompt_logprobs;
  };

  void AddSequences(Request& request);
  void RecordAdmissions(const StepPlan& plan);
  absl::Span<float> Prepare(const StepPlan& plan);
  bool ProcessChunk(const StepChunk& chunk, absl::Span<const float> logits);
  bool AddPromptLogprobs(const StepChunk& chunk, absl::Span<const float> logits, Request& request);
  bool GenerateToken(absl::Span<const float> logits, Sequence& sequence, Request& request);
  TokenDelta NewDelta(Sequence& sequence, Request& request);
  void RecordToken(Sequence& sequence, Request& request);
  void Deliver(TokenDelta delta, Sequence& sequence, Request& request);
  void Fail(const absl::Status& status, Request& request);
  void End(const std::string& outcome, Request& request);
  absl::Span<const float> Row(absl::Span<const float> logits, int row) const;
  Request& RequestOf(const Sequence& sequence) { return *requests_.at(sequence.arrival); }

  const EngineOptions options_;
  ModelRunner& runner_;
  Clock& clock_;
  const Logger& logger_;
  FrontendMetrics& metrics_;
  const std::function<void(const std::string&)> on_end_;
  KvBlockManager kv_;
  Scheduler scheduler_;
  StepPacer pacer_;
  Sampler sampler_;
  std::map<uint64_t, std::unique_ptr<Request>> requests_;  // by arrival
  std::vector<std::unique_ptr<Request>> ended_;  // a step under way may still point to them
  StepPlan plan_;                                // between PlanStep and RunStep
  uint64_t num_arrived_ = 0;
  int num_queued_ = 0;
  int64_t num_prompt_tokens_ = 0;
  int64_t num_cached_tokens_ = 0;
  std::vector<SequenceStep> steps_;
  std::vector<const Request*> computing_;  // the requests of `steps_`
  bool interrupted_ = false;               // the step under way is being given up
  std::vector<float> logits_;
};

}  // namespace atelier
