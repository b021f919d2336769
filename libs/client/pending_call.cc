#include "libs/client/pending_call.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/base/status_macros.h"

namespace atelier {
namespace {

// Little-endian fp32. Integers, so that the compiler may look at many at once.
bool AnyNotFinite(const std::string& data) {
  constexpr uint32_t kExponent = 0x7f800000;
  uint32_t found = 0;
  for (size_t i = 0; i + sizeof(uint32_t) <= data.size(); i += sizeof(uint32_t)) {
    uint32_t bits = 0;
    std::memcpy(&bits, data.data() + i, sizeof(bits));
    found |= static_cast<uint32_t>((bits & kExponent) == kExponent);
  }
  return found != 0;
}

bool AnyNotFinite(const ForwardReply& reply) {
  return reply.non_finite_tokens > 0 ||
         std::any_of(reply.sums.begin(), reply.sums.end(),
                     [](const ShardSum& sum) { return AnyNotFinite(sum.data); });
}

}  // namespace

PendingCall::PendingCall(WorkerPool& pool, std::shared_ptr<const Routes> routes, int layer,
                         int num_tokens, absl::Time deadline, std::vector<PartRequest> parts)
    : pool_(pool),
      routes_(std::move(routes)),
      layer_(*routes_->table->Layer(layer)),
      num_tokens_(num_tokens),
      deadline_(deadline) {
  const PartAttempts::Policy policy{pool.options().failover, pool.health(), pool.budget()};
  for (PartRequest& request : parts) {
    const auto rows = static_cast<int>(request.rows.size());
    PartAttempts attempts(request.replicas, rows, deadline, policy);
    parts_.push_back({std::move(request), std::move(attempts), {}, 0, false, {}, 0});
  }
  for (size_t i = 0; i < parts_.size(); ++i) {
    pool.budget().CountCall();
    const PartAttempts::Step step = parts_[i].attempts.Next(pool.clock().Now(), *routes_);
    if (step.worker.has_value()) Ask(i, *step.worker, *routes_);
  }
}

// A handle's destructor waits for a callback that is running, so none outlives the members.
PendingCall::~PendingCall() {
  for (Part& part : parts_) part.in_flight.clear();
  for (const Answer& answer : TakeAnswers()) {
    const Part& part = parts_[answer.part];
    if (part.answered && answer.reply.status.ok()) {
      pool_.Count(WorkerPool::Event::kLateAnswer, part.attempts.WorkerOf(answer.attempt));
    }
  }
}

void PendingCall::Ask(size_t part, size_t worker, const Routes& routes) {
  const absl::Time start = pool_.clock().Now();
  const size_t attempt = parts_[part].attempts.Asked(worker, routes, start);
  parts_[part].in_flight.push_back(
      pool_.Send(worker, parts_[part].request.encoded, deadline_,
                 [this, part, attempt, worker, start](ForwardReply reply) {
                   const absl::Time now = pool_.clock().Now();
                   pool_.CountAnswer(worker, now - start, reply.status);
                   absl::MutexLock lock(&mutex_);
                   answers_.push_back({part, attempt, now, std::move(reply)});
                 }));
}

absl::Status PendingCall::Wait(float* out) {
  std::vector<Answer> answers = TakeAnswers();
  while (true) {
    for (Answer& answer : answers) Take(std::move(answer));
    absl::Time until = absl::InfiniteFuture();
    bool all_answered = true;
    const std::shared_ptr<const Routes> routes = pool_.workers().routes();
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (!parts_[i].answered) ATELIER_RETURN_IF_ERROR(Advance(i, *routes, &until));
      all_answered &= parts_[i].answered;
    }
    if (all_answered) break;
    LookForAnswers();
    answers = AwaitAnswers(until);
  }
  const auto hidden = static_cast<size_t>(routes_->table->hidden_size());
  std::fill_n(out, static_cast<size_t>(num_tokens_) * hidden, 0.0f);
  for (size_t shard = 0; shard < layer_.shards.size(); ++shard) AddShard(shard, out);
  return absl::OkStatus();
}

absl::Status PendingCall::Advance(size_t index, const Routes& routes, absl::Time* until) {
  Part& part = parts_[index];
  const PartAttempts::Step step = part.attempts.Next(pool_.clock().Now(), routes);
  if (step.give_up) {
    const absl::Status error = part.attempts.Error();
    return error.ok() ? pool_.workers().WhyUnusable(*part.request.group) : error;
  }
  if (step.ask_for_sign.has_value()) pool_.AskForSign(*step.ask_for_sign);
  if (step.worker.has_value()) {
    Count(part, step);
    Ask(index, *step.worker, routes);
  }
  part.answered |= step.take_not_finite;
  // Whoever was asked just now is looked after in the next round.
  *until = std::min(*until, step.worker.has_value() ? absl::InfinitePast() : step.until);
  return absl::OkStatus();
}

void PendingCall::Count(const Part& part, const PartAttempts::Step& step) {
  if (step.why == PartAttempts::Why::kFirst) return;
  const bool late = step.why == PartAttempts::Why::kLate || step.why == PartAttempts::Why::kStalled;
  pool_.Count(late ? WorkerPool::Event::kHedge : WorkerPool::Event::kFailover,
              part.attempts.LastWorker());
}

void PendingCall::Take(Answer answer) {
  Part& part = parts_[answer.part];
  const size_t worker = part.attempts.WorkerOf(answer.attempt);
  if (answer.reply.status.ok()) answer.reply.status = CheckSums(part, worker, answer.reply);
  if (part.answered) {
    if (answer.reply.status.ok()) pool_.Count(WorkerPool::Event::kLateAnswer, worker);
    return;
  }
  if (!answer.reply.status.ok()) {
    return part.attempts.Failed(answer.attempt, answer.reply.status, answer.time);
  }
  // With one replica there is nobody else to ask.
  if (part.request.replicas.size() > 1 && AnyNotFinite(answer.reply)) {
    return TakeNotFinite(part, answer.attempt, std::move(answer.reply));
  }
  if (!part.reply.sums.empty()) pool_.Count(WorkerPool::Event::kNotFinite, part.worker);
  part.attempts.Answered(answer.attempt, answer.time);
  part.answered = true;
  part.worker = worker;
  part.reply = std::move(answer.reply);
}

void PendingCall::TakeNotFinite(Part& part, size_t attempt, ForwardReply reply) {
  part.attempts.NotFinite(attempt);
  if (!part.reply.sums.empty()) return;
  part.worker = part.attempts.WorkerOf(attempt);
  part.reply = std::move(reply);
}

// Once for each attempt: what a look did not catch is waited for asleep.
void PendingCall::LookForAnswers() {
  for (Part& part : parts_) {
    if (part.answered || part.looked_for == part.in_flight.size()) continue;
    part.looked_for = part.in_flight.size();
    if (HasAnswers()) return;
    part.in_flight.back()->AwaitBriefly();
  }
}

std::vector<PendingCall::Answer> PendingCall::AwaitAnswers(absl::Time until) {
  const auto come = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !answers_.empty(); };
  // The clock's times are its own, so the wait is given as a duration.
  const absl::Duration patience =
      until == absl::InfiniteFuture() ? absl::InfiniteDuration() : until - pool_.clock().Now();
  {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&come), patience);
  }
  return TakeAnswers();
}

std::vector<PendingCall::Answer> PendingCall::TakeAnswers() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(answers_, {});
}

bool PendingCall::HasAnswers() {
  absl::MutexLock lock(&mutex_);
  return !answers_.empty();
}

// The connection checked the answer against what the worker holds now; the table says what it held
// when the routes were made.
absl::Status PendingCall::CheckSums(const Part& part, size_t worker,
                                    const ForwardReply& reply) const {
  const size_t bytes =
      part.request.rows.size() * static_cast<size_t>(routes_->table->hidden_size()) * sizeof(float);
  for (const size_t index : part.request.group->shards) {
    const std::string* sum = SumOf(layer_.shards[index], reply);
    if (sum != nullptr && sum->size() == bytes) continue;
    return absl::UnavailableError(absl::StrCat("worker ", pool_.options().workers[worker],
                                               ": the answer lacks the sums of a shard that it "
                                               "described"));
  }
  return absl::OkStatus();
}

// Shards are counted by the description that the answer was asked by, which may be another than the
// one that the routes were made of.
const std::string* PendingCall::SumOf(const RoutedShard& shard, const ForwardReply& reply) const {
  const auto sum =
      std::find_if(reply.sums.begin(), reply.sums.end(), [&](const ShardSum& candidate) {
        const ShardSpec& held = reply.described->shards[static_cast<size_t>(candidate.shard)];
        return held.expert_begin == shard.expert_begin && held.expert_end == shard.expert_end &&
               held.slice_index == shard.slice_index && held.slice_count == shard.slice_count;
      });
  return sum == reply.sums.end() ? nullptr : &sum->data;
}

// A row that was not sent to the shard's workers has no expert there: its sum is zero, and adding
// zero changes no bit.
void PendingCall::AddShard(size_t shard, float* out) const {
  const auto hidden = static_cast<size_t>(routes_->table->hidden_size());
  std::vector<float> values(hidden);
  for (const Part& part : parts_) {
    const std::vector<size_t>& shards = part.request.group->shards;
    if (std::find(shards.begin(), shards.end(), shard) == shards.end()) continue;
    const std::string& sum = *SumOf(layer_.shards[shard], part.reply);
    for (size_t r = 0; r < part.request.rows.size(); ++r) {
      std::memcpy(values.data(), sum.data() + r * hidden * sizeof(float), hidden * sizeof(float));
      float* to = out + static_cast<size_t>(part.request.rows[r]) * hidden;
      for (size_t j = 0; j < hidden; ++j) to[j] += values[j];
    }
  }
}

}  // namespace atelier
