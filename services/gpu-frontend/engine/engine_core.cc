#include "services/gpu-frontend/engine/engine_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/base/check.h"
#include "libs/metrics/metrics.h"

namespace atelier {
namespace {

SchedulerOptions ToSchedulerOptions(const EngineOptions& options) {
  SchedulerOptions result;
  result.max_running = options.max_running_requests;
  return result;
}

std::string OutcomeOf(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      break;
  }
  return "abort";
}

absl::Status UnusableLogits(absl::string_view what) {
  return absl::InternalError(absl::StrCat(
      "the model gave no usable logits (all NaN, minus infinity or forbidden) ", what));
}

}  // namespace

EngineCore::EngineCore(const EngineOptions& options, ModelRunner& runner, Clock& clock,
                       const Logger& logger, FrontendMetrics& metrics,
                       std::function<void(const std::string&)> on_end)
    : options_(options),
      runner_(runner),
      clock_(clock),
      logger_(logger),
      metrics_(metrics),
      on_end_(std::move(on_end)),
      kv_(runner.num_blocks(), runner.block_size(), options.prefix_cache),
      scheduler_(ToSchedulerOptions(options), kv_),
      pacer_(options.chunked_prefill_size, options.max_step_time) {}

RequestLimits EngineCore::limits() const {
  RequestLimits limits;
  limits.vocab_size = runner_.vocab_size();
  limits.max_context = runner_.max_context();
  limits.kv_capacity = kv_.num_blocks() * kv_.block_size();
  limits.max_new_tokens_default = options_.max_new_tokens_default;
  return limits;
}

void EngineCore::Add(SubmittedRequest submitted) {
  const uint64_t arrival = num_arrived_++;
  GenerateRequest& r = submitted.request;
  const int max_new_tokens = MaxNewTokens(r, limits());
  StopRules stops(r.sampling, options_.eos_token_ids);
  const uint64_t seed = r.sampling.seed.value_or(MixBits(MixBits(options_.seed) + arrival));
  auto request = std::make_unique<Request>(Request{std::move(r),
                                                   std::move(submitted.sink),
                                                   submitted.submitted,
                                                   std::move(stops),
                                                   seed,
                                                   max_new_tokens,
                                                   {},
                                                   0,
                                                   false,
                                                   false,
                                                   0,
                                                   {}});
  Request& added = *requests_.emplace(arrival, std::move(request)).first->second;
  ++num_queued_;
  AddSequences(added);
  ended_.clear();
}

void EngineCore::AddSequences(Request& request) {
  const int prompt_size = static_cast<int>(request.request.prompt.size());
  const int prompt_start = request.request.logprobs.prompt_start;
  for (int i = 0; i < request.request.sampling.n; ++i) {
    auto s = std::make_unique<Sequence>();
    s->arrival = num_arrived_ - 1;
    s->index = i;
    s->group = &request.sequences;
    s->tokens = request.request.prompt;
    s->prompt_size = prompt_size;
    s->next_prompt_logprob = prompt_size;
    if (HasPenalty(request.request.sampling)) s->history.AddPrompt(s->tokens);
    request.sequences.push_back(std::move(s));
  }
  if (prompt_start == 0) request.prompt_logprobs.push_back({request.request.prompt[0], {}, {}});
  if (prompt_start >= 0) {
    request.sequences[0]->next_prompt_logprob = std::max(prompt_start, 1);
  }
  request.num_unfinished = request.request.sampling.n;
  for (const auto& s : request.sequences) {
    if (request.max_new_tokens > 0 || s->wants_prompt_logits()) {
      scheduler_.Add(*s);
      continue;
    }
    TokenDelta delta = NewDelta(*s, request);
    delta.finish = FinishReason::kLength;
    Deliver(std::move(delta), *s, request);
  }
}

bool EngineCore::Abort(const std::string& id) {
  const auto it = std::find_if(requests_.begin(), requests_.end(),
                               [&](const auto& entry) { return entry.second->request.id == id; });
  if (it == requests_.end()) return false;
  Request& request = *it->second;
  for (const auto& s : request.sequences) {
    if (s->state == SequenceState::kFinished) continue;
    TokenDelta delta = NewDelta(*s, request);
    delta.prompt_logprobs.clear();  // perhaps not all of them
    delta.finish = FinishReason::kAbort;
    Deliver(std::move(delta), *s, request);
  }
  ended_.clear();
  return true;
}

void EngineCore::FailAll(const absl::Status& status) {
  while (!requests_.empty()) Fail(status, *requests_.begin()->second);
  ended_.clear();
}

bool EngineCore::FlushCache() {
  if (!empty()) return false;
  kv_.FlushCache();
  return true;
}

void EngineCore::PlanStep() {
  plan_ = scheduler_.Plan(pacer_.PromptTokens(/*shared=*/requests_.size() > 1));
  ATELIER_CHECK(!plan_.chunks.empty());
  RecordAdmissions(plan_);
}

int EngineCore::RunStep() {
  const StepPlan plan = std::exchange(plan_, {});
  const absl::Span<float> logits = Prepare(plan);
  interrupted_ = false;
  const absl::Time start = clock_.Now();
  if (const absl::Status status = runner_.Step(steps_, logits); !status.ok()) {
    if (interrupted_ && absl::IsCancelled(status)) return 0;
    logger_.Warning("step_failed",
                    {Kv("sequences", plan.chunks.size()), Kv("status", status.ToString())});
    for (const StepChunk& chunk : plan.chunks) {
      // Another sequence of the request may have ended it already.
      if (chunk.sequence->state == SequenceState::kRunning)
        Fail(status, RequestOf(*chunk.sequence));
    }
    ended_.clear();
    return 0;
  }
  pacer_.Record(plan.num_prompt_tokens, clock_.Now() - start);
  int num_generated = 0;
  int row = 0;
  for (const StepChunk& chunk : plan.chunks) {
    const size_t vocab = static_cast<size_t>(runner_.vocab_size());
    const absl::Span<const float> rows = logits.subspan(
        static_cast<size_t>(row) * vocab, static_cast<size_t>(chunk.num_logits) * vocab);
    row += chunk.num_logits;
    if (chunk.sequence->state != SequenceState::kRunning) continue;
    num_generated += ProcessChunk(chunk, rows) ? 1 : 0;
  }
  ended_.clear();
  return num_generated;
}

bool EngineCore::Interrupt(const std::vector<std::string>& aborted) {
  interrupted_ = std::all_of(computing_.begin(), computing_.end(), [&](const Request* r) {
    return std::find(aborted.begin(), aborted.end(), r->request.id) != aborted.end();
  });
  return interrupted_;
}

void EngineCore::RecordAdmissions(const StepPlan& plan) {
  metrics_.preemptions.Increment(plan.num_preempted);
  for (Sequence* s : plan.admitted) {
    Request& request = RequestOf(*s);
    if (request.was_admitted) continue;
    request.was_admitted = true;
    --num_queued_;
    request.num_cached = s->num_computed;
    num_prompt_tokens_ += s->prompt_size;
    num_cached_tokens_ += s->num_computed;
    metrics_.prompt_tokens.Increment(s->prompt_size);
    metrics_.cached_tokens.Increment(s->num_computed);
    metrics_.queue_seconds.Observe(absl::ToDoubleSeconds(clock_.Now() - request.submitted));
  }
}

absl::Span<float> EngineCore::Prepare(const StepPlan& plan) {
  steps_.clear();
  computing_.clear();
  size_t num_rows = 0;
  int num_tokens = 0;
  for (const StepChunk& chunk : plan.chunks) {
    computing_.push_back(&RequestOf(*chunk.sequence));
    SequenceStep step;
    step.tokens = absl::MakeConstSpan(chunk.sequence->tokens)
                      .subspan(static_cast<size_t>(chunk.start), static_cast<size_t>(chunk.count));
    step.start = chunk.start;
    step.block_table = chunk.sequence->blocks.blocks;
    step.num_logits = chunk.num_logits;
    steps_.push_back(step);
    num_rows += static_cast<size_t>(chunk.num_logits);
    num_tokens += chunk.count;
  }
  metrics_.steps.Increment();
  metrics_.step_tokens.Observe(num_tokens);
  const size_t num_logits = num_rows * static_cast<size_t>(runner_.vocab_size());
  if (logits_.size() < num_logits) logits_.resize(num_logits);
  return absl::MakeSpan(logits_).first(num_logits);
}

absl::Span<const float> EngineCore::Row(absl::Span<const float> logits, int row) const {
  const size_t vocab = static_cast<size_t>(runner_.vocab_size());
  return logits.subspan(static_cast<size_t>(row) * vocab, vocab);
}

bool EngineCore::ProcessChunk(const StepChunk& chunk, absl::Span<const float> logits) {
  Sequence& s = *chunk.sequence;
  Request& request = RequestOf(s);
  scheduler_.Complete(chunk);
  if (!AddPromptLogprobs(chunk, logits, request)) {
    Fail(UnusableLogits("for the prompt"), request);
    return false;
  }
  if (s.num_remaining() > 0) return false;
  if (request.max_new_tokens == 0) {
    TokenDelta delta = NewDelta(s, request);
    delta.finish = FinishReason::kLength;
    Deliver(std::move(delta), s, request);
    return false;
  }
  if (!GenerateToken(Row(logits, chunk.num_logits - 1), s, request)) {
    Fail(UnusableLogits(absl::StrCat("for token ", s.num_output(), " of the output")), request);
    return false;
  }
  return true;
}

bool EngineCore::AddPromptLogprobs(const StepChunk& chunk, absl::Span<const float> logits,
                                   Request& request) {
  Sequence& s = *chunk.sequence;
  const int end = chunk.start + chunk.count;
  const int first = end - chunk.num_logits;
  for (; s.wants_prompt_logits() && s.next_prompt_logprob <= end; ++s.next_prompt_logprob) {
    const int32_t token = s.tokens[static_cast<size_t>(s.next_prompt_logprob)];
    std::optional<TokenLogprob> logprob = LogprobOf(token, request.request.logprobs.top,
                                                    Row(logits, s.next_prompt_logprob - 1 - first));
    if (!logprob) return false;
    request.prompt_logprobs.push_back(*std::move(logprob));
  }
  return true;
}

bool EngineCore::GenerateToken(absl::Span<const float> logits, Sequence& s, Request& request) {
  const SamplingOptions& sampling = request.request.sampling;
  const RandomKey random{request.seed, static_cast<uint32_t>(s.index),
                         static_cast<uint32_t>(s.size())};
  const std::optional<int32_t> token = sampler_.Sample(
      {logits, sampling, s.history, request.stops.Forbidden(s.num_output()), random});
  if (!token) return false;
  TokenDelta delta = NewDelta(s, request);
  delta.completion_tokens = s.num_output() + 1;
  const StopRules::Verdict verdict = request.stops.Judge(*token);
  if (verdict != StopRules::Verdict::kContinue) {
    delta.finish = FinishReason::kStop;
    delta.matched_token = *token;
  }
  if (verdict != StopRules::Verdict::kEndOfSequence) {
    s.tokens.push_back(*token);
    if (HasPenalty(sampling)) s.history.AddOutput(*token);
    delta.tokens.push_back(*token);
    if (request.request.logprobs.enabled) {
      std::optional<TokenLogprob> logprob = LogprobOf(*token, request.request.logprobs.top, logits);
      if (!logprob) return false;
      delta.logprobs.push_back(*std::move(logprob));
    }
  }
  if (!delta.finish && s.num_output() >= request.max_new_tokens) {
    delta.finish = FinishReason::kLength;
  }
  RecordToken(s, request);
  Deliver(std::move(delta), s, request);
  return true;
}

TokenDelta EngineCore::NewDelta(Sequence& s, Request& request) {
  TokenDelta delta;
  delta.index = s.index;
  delta.prompt_tokens = s.prompt_size;
  delta.completion_tokens = s.num_output();
  delta.cached_tokens = request.num_cached;
  if (s.index == 0) delta.prompt_logprobs = std::exchange(request.prompt_logprobs, {});
  return delta;
}

void EngineCore::RecordToken(Sequence& s, Request& request) {
  const absl::Time now = clock_.Now();
  metrics_.generated_tokens.Increment();
  if (!request.has_token) {
    request.has_token = true;
    metrics_.time_to_first_token.Observe(absl::ToDoubleSeconds(now - request.submitted));
  }
  if (s.last_token_time != absl::InfinitePast()) {
    metrics_.inter_token_latency.Observe(absl::ToDoubleSeconds(now - s.last_token_time));
  }
  s.last_token_time = now;
}

void EngineCore::Deliver(TokenDelta delta, Sequence& s, Request& request) {
  const std::shared_ptr<RequestSink> sink = request.sink;
  if (delta.finish) {
    scheduler_.Remove(s);
    if (--request.num_unfinished == 0) End(OutcomeOf(*delta.finish), request);
  }
  sink->OnDelta(std::move(delta));
}

void EngineCore::Fail(const absl::Status& status, Request& request) {
  for (const auto& s : request.sequences) scheduler_.Remove(*s);
  const std::shared_ptr<RequestSink> sink = request.sink;
  End("error", request);
  sink->OnError(status);
}

void EngineCore::End(const std::string& outcome, Request& request) {
  metrics_.RequestsWith(outcome).Increment();
  metrics_.request_seconds.Observe(absl::ToDoubleSeconds(clock_.Now() - request.submitted));
  if (!request.was_admitted) --num_queued_;
  const auto it = requests_.find(request.sequences[0]->arrival);
  ended_.push_back(std::move(it->second));
  requests_.erase(it);
  on_end_(request.request.id);
}

EngineLoad EngineCore::Load() const {
  EngineLoad load;
  load.running = scheduler_.num_running();
  load.waiting = scheduler_.num_waiting();
  load.used_tokens = int64_t{kv_.used_blocks()} * kv_.block_size();
  load.total_tokens = int64_t{kv_.num_blocks()} * kv_.block_size();
  load.waiting_uncached_tokens = scheduler_.num_waiting_tokens();
  load.max_running = options_.max_running_requests;
  load.cache_hit_rate = num_prompt_tokens_ == 0 ? 0
                                                : static_cast<double>(num_cached_tokens_) /
                                                      static_cast<double>(num_prompt_tokens_);
  load.kv_cache_bytes = options_.kv_cache_bytes;
  return load;
}

absl::Status EngineCore::CheckInvariants() const {
  std::vector<const KvBlockTable*> tables;
  for (const auto& [arrival, request] : requests_) {
    for (const auto& s : request->sequences) tables.push_back(&s->blocks);
  }
  return kv_.CheckInvariants(tables);
}

}  // namespace atelier
