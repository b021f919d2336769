#include "services/gpu-frontend/engine/engine.h"

#include <thread>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "libs/base/quoted.h"
#include "libs/base/status_macros.h"
#include "libs/metrics/metrics.h"
#include "services/gpu-frontend/engine/engine_core.h"
#include "services/gpu-frontend/engine/token_rate.h"

namespace atelier {
namespace {

// What other threads asked for since the last step.
struct Inbox {
  std::vector<SubmittedRequest> requests;
  std::vector<std::string> aborts;
  bool flush = false;
  bool stop = false;

  bool empty() const { return requests.empty() && aborts.empty() && !flush && !stop; }
};

// core_ belongs to the thread; everything else that threads share is behind mutex_, which is never
// held during a step or a sink's call.
class ThreadedEngine final : public Engine {
 public:
  ThreadedEngine(const EngineOptions& options, ModelRunner& runner, Clock& clock,
                 const Logger& logger, FrontendMetrics& metrics)
      : options_(options),
        runner_(runner),
        clock_(clock),
        metrics_(metrics),
        core_(options, runner, clock, logger, metrics,
              [this](const std::string& id) { Forget(id); }),
        limits_(core_.limits()),
        load_(core_.Load()),
        thread_([this] { Run(); }) {}

  ~ThreadedEngine() override {
    {
      absl::MutexLock lock(&mutex_);
      inbox_.stop = true;
    }
    thread_.join();
  }

  absl::Status Submit(GenerateRequest request, std::shared_ptr<RequestSink> sink) override;
  bool Abort(const std::string& id) override;
  void Drain() override {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
  }
  bool Idle() const override {
    absl::MutexLock lock(&mutex_);
    return in_flight_.empty() && !working_;
  }
  bool FlushCache() override;
  EngineLoad Load() const override;

 private:
  void Run();
  bool StepIsUnwanted();
  Inbox NextInbox(bool has_work);
  void Serve(Inbox inbox);
  void Publish(int num_generated);
  void Forget(const std::string& id) {
    absl::MutexLock lock(&mutex_);
    in_flight_.erase(id);
  }

  const EngineOptions options_;
  ModelRunner& runner_;
  Clock& clock_;
  FrontendMetrics& metrics_;
  EngineCore core_;
  const RequestLimits limits_;

  mutable absl::Mutex mutex_;
  Inbox inbox_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<std::string> in_flight_ ABSL_GUARDED_BY(mutex_);
  int num_queued_ ABSL_GUARDED_BY(mutex_) = 0;  // not yet computed, inbox included
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool working_ ABSL_GUARDED_BY(mutex_) = false;  // the thread has work in hand
  bool flushed_ ABSL_GUARDED_BY(mutex_) = false;  // what the last flush answered
  EngineLoad load_ ABSL_GUARDED_BY(mutex_);       // after the last step
  mutable TokenRate rate_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // last: it uses all the others
};

absl::Status ThreadedEngine::Submit(GenerateRequest request, std::shared_ptr<RequestSink> sink) {
  ATELIER_RETURN_IF_ERROR(ValidateRequest(request, limits_));
  const absl::Time now = clock_.Now();
  absl::MutexLock lock(&mutex_);
  if (draining_ || inbox_.stop) {
    return absl::UnavailableError("the frontend is draining: send the request to another one");
  }
  if (in_flight_.contains(request.id)) {
    return absl::AlreadyExistsError(
        absl::StrCat("id=", Quoted(request.id), ": a request in flight has it"));
  }
  if (num_queued_ >= options_.max_queued_requests) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the queue is full: ", options_.max_queued_requests,
                     " requests wait (--max-queued-requests); try again later"));
  }
  in_flight_.insert(request.id);
  ++num_queued_;
  inbox_.requests.push_back({std::move(request), std::move(sink), now});
  return absl::OkStatus();
}

bool ThreadedEngine::Abort(const std::string& id) {
  absl::MutexLock lock(&mutex_);
  if (!in_flight_.contains(id)) return false;
  inbox_.aborts.push_back(id);
  return true;
}

bool ThreadedEngine::FlushCache() {
  absl::MutexLock lock(&mutex_);
  if (!in_flight_.empty()) return false;
  inbox_.flush = true;
  const auto answered = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !inbox_.flush; };
  mutex_.Await(absl::Condition(&answered));
  return flushed_;
}

EngineLoad ThreadedEngine::Load() const {
  const absl::Time now = clock_.Now();
  absl::MutexLock lock(&mutex_);
  EngineLoad load = load_;
  for (const SubmittedRequest& r : inbox_.requests) {
    load.waiting += r.request.sampling.n;
    load.waiting_uncached_tokens +=
        int64_t{r.request.sampling.n} * static_cast<int64_t>(r.request.prompt.size());
  }
  load.tokens_per_second = rate_.PerSecond(now);
  return load;
}

Inbox ThreadedEngine::NextInbox(bool has_work) {
  absl::MutexLock lock(&mutex_);
  if (!has_work) {
    working_ = false;
    const auto called = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !inbox_.empty(); };
    mutex_.Await(absl::Condition(&called));
  }
  working_ = true;
  Inbox inbox = std::exchange(inbox_, {});
  // The two that other threads watch.
  inbox_.stop = inbox.stop;
  inbox_.flush = inbox.flush;
  return inbox;
}

void ThreadedEngine::Serve(Inbox inbox) {
  // Requests first: an abort may be of one that came with it.
  for (SubmittedRequest& r : inbox.requests) core_.Add(std::move(r));
  for (const std::string& id : inbox.aborts) core_.Abort(id);
  if (inbox.flush) {
    const bool flushed = core_.FlushCache();
    absl::MutexLock lock(&mutex_);
    flushed_ = flushed;
    inbox_.flush = false;
  }
}

bool ThreadedEngine::StepIsUnwanted() {
  absl::MutexLock lock(&mutex_);
  return !inbox_.aborts.empty() && core_.Interrupt(inbox_.aborts);
}

void ThreadedEngine::Run() {
  runner_.SetInterrupt([this] { return StepIsUnwanted(); });
  while (true) {
    Inbox inbox = NextInbox(!core_.empty());
    const bool stop = inbox.stop;
    Serve(std::move(inbox));
    if (stop) break;
    if (!core_.empty()) core_.PlanStep();
    Publish(0);
    if (!core_.empty()) Publish(core_.RunStep());
  }
  runner_.SetInterrupt(nullptr);
  core_.FailAll(absl::UnavailableError("the frontend is shutting down"));
  Publish(0);
}

void ThreadedEngine::Publish(int num_generated) {
  const EngineLoad load = core_.Load();
  const absl::Time now = clock_.Now();
  metrics_.running.Set(load.running);
  metrics_.waiting.Set(load.waiting);
  metrics_.kv_usage.Set(static_cast<double>(load.used_tokens) /
                        static_cast<double>(load.total_tokens));
  absl::MutexLock lock(&mutex_);
  load_ = load;
  num_queued_ = core_.num_queued() + static_cast<int>(inbox_.requests.size());
  rate_.Add(now, num_generated);
}

absl::Status CheckAtLeastOne(absl::string_view field, int value) {
  if (value >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, "=", value, ": must be at least 1"));
}

absl::Status CheckRunner(const EngineOptions& options, const ModelRunner& runner) {
  ATELIER_RETURN_IF_ERROR(CheckAtLeastOne("vocab_size", runner.vocab_size()));
  ATELIER_RETURN_IF_ERROR(CheckAtLeastOne("max_context", runner.max_context()));
  ATELIER_RETURN_IF_ERROR(CheckAtLeastOne("block_size", runner.block_size()));
  ATELIER_RETURN_IF_ERROR(CheckAtLeastOne("num_blocks", runner.num_blocks()));
  for (const int32_t token : options.eos_token_ids) {
    if (token >= 0 && token < runner.vocab_size()) continue;
    return absl::InvalidArgumentError(absl::StrCat("eos_token_ids: ", token,
                                                   " lies outside the model's vocabulary of ",
                                                   runner.vocab_size(), " tokens"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status EngineOptions::Validate() const {
  ATELIER_RETURN_IF_ERROR(CheckAtLeastOne("max_running_requests", max_running_requests));
  ATELIER_RETURN_IF_ERROR(CheckAtLeastOne("max_queued_requests", max_queued_requests));
  ATELIER_RETURN_IF_ERROR(CheckAtLeastOne("chunked_prefill_size", chunked_prefill_size));
  if (max_step_time < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_step_time=", absl::FormatDuration(max_step_time), ": must be >= 0"));
  }
  if (max_new_tokens_default < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_new_tokens_default=", max_new_tokens_default, ": must be >= 0 (0 = the room left)"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options,
                                                       ModelRunner& runner, Clock& clock,
                                                       const Logger& logger,
                                                       FrontendMetrics& metrics) {
  ATELIER_RETURN_IF_ERROR(options.Validate());
  ATELIER_RETURN_IF_ERROR(CheckRunner(options, runner));
  return std::make_unique<ThreadedEngine>(options, runner, clock, logger, metrics);
}

}  // namespace atelier
