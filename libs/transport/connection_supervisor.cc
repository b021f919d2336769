// The part of ConnectionCore that its own thread runs: finding the worker, watching it, and
// finding it again.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/base/status_macros.h"
#include "libs/transport/connection_core.h"

namespace atelier {
namespace {

constexpr absl::Duration kFirstBackoff = absl::Milliseconds(100);
constexpr absl::Duration kLongestBackoff = absl::Seconds(1);
// Of a worker that answers, but does not serve yet.
constexpr absl::Duration kLoadingInterval = absl::Milliseconds(250);
constexpr absl::Duration kConnectTimeout = absl::Seconds(5);
constexpr absl::Duration kHeartbeatInterval = absl::Seconds(1);
constexpr absl::Duration kHeartbeatTimeout = absl::Seconds(5);
// Who holds less is believed when the others, who may hold more for it, have been asked as well.
// The worker answers calls of its former epoch for longer.
constexpr absl::Duration kHoldsLessDelay = absl::Seconds(2);

absl::Status CheckServing(const WorkerDescription& description) {
  if (description.state == WorkerState::kServing) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("it is ", WorkerStateName(description.state)));
}

// Whether a heartbeat's answer still fits what the calls rely on: other shards of the same model
// have an epoch of their own.
absl::Status CheckUsable(const WorkerDescription& now, const WorkerDescription& before) {
  ATELIER_RETURN_IF_ERROR(CheckServing(now));
  const bool same_model = now.model_digest == before.model_digest && now.method == before.method &&
                          now.hidden_size == before.hidden_size &&
                          now.num_experts == before.num_experts;
  if (same_model && (now.epoch != before.epoch || now.shards == before.shards)) {
    return absl::OkStatus();
  }
  return absl::UnavailableError("it changed what it holds");
}

bool Holds(const WorkerDescription& description, const ShardSpec& shard, int layer) {
  return std::any_of(
      description.shards.begin(), description.shards.end(), [&](const ShardSpec& other) {
        return other.expert_begin == shard.expert_begin && other.expert_end == shard.expert_end &&
               other.slice_index == shard.slice_index && other.slice_count == shard.slice_count &&
               std::binary_search(other.layers.begin(), other.layers.end(), layer);
      });
}

bool HoldsLess(const WorkerDescription& now, const WorkerDescription& before) {
  for (const ShardSpec& shard : before.shards) {
    for (const int layer : shard.layers) {
      if (!Holds(now, shard, layer)) return true;
    }
  }
  return false;
}

}  // namespace

void ConnectionCore::Stop() {
  absl::MutexLock lock(&mutex_);
  stopping_ = true;
  WakeLocked();
}

void ConnectionCore::WakeLocked() {
  wake_requested_ = true;
  wake_.Signal();
}

void ConnectionCore::WaitForEvent(absl::Time until) {
  absl::MutexLock lock(&mutex_);
  sleeping_until_ = std::min(until, in_flight_.NextDeadline());
  while (!wake_requested_ && !stopping_) {
    const absl::Duration left = sleeping_until_ - clock_.Now();
    if (left <= absl::ZeroDuration()) break;
    wake_.WaitWithTimeout(&mutex_, left);
  }
  wake_requested_ = false;
  sleeping_until_ = absl::InfinitePast();
}

void ConnectionCore::Run() {
  std::uniform_real_distribution<double> jitter(0.8, 1.2);
  backoff_ = kFirstBackoff;
  while (true) {
    const absl::Status lost = RunSession();
    StopTakingCalls(lost);
    const absl::Time next = clock_.Now() + backoff_ * jitter(random_);
    backoff_ = std::min(backoff_ * 2, kLongestBackoff);
    const auto stopping = [this] {
      absl::MutexLock lock(&mutex_);
      return stopping_;
    };
    if (stopping()) return;
    on_state_(Named(lost));
    while (!stopping() && clock_.Now() < next) WaitForEvent(next);
    if (stopping()) return;
  }
}

absl::Status ConnectionCore::RunSession() {
  WorkerSession session(open_channel_(address_), [this] {
    absl::MutexLock lock(&mutex_);
    WakeLocked();
  });
  session.StartDescribe(kConnectTimeout);
  ATELIER_ASSIGN_OR_RETURN(const WorkerDescription description, AwaitDescription(session));
  backoff_ = kLoadingInterval;
  ATELIER_RETURN_IF_ERROR(CheckServing(description));
  {
    absl::MutexLock lock(&mutex_);
    stream_ready_ = stream_done_ = suspicious_ = false;
    awaiting_sign_.clear();
    lost_ = reset_ = absl::OkStatus();
  }
  const std::shared_ptr<CallStream> stream = session.OpenStream(*this);
  {
    absl::MutexLock lock(&mutex_);
    stream_ = stream;
  }
  const absl::Status lost = UseStream(session, description);
  StopTakingCalls(lost);
  session.CancelStream();
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&stream_done_));
  stream_ = nullptr;
  return lost;
}

absl::StatusOr<WorkerDescription> ConnectionCore::AwaitDescription(WorkerSession& session) {
  while (!session.DescribeAnswered()) {
    WaitForEvent(absl::InfiniteFuture());
    absl::MutexLock lock(&mutex_);
    if (stopping_) return absl::CancelledError("the client is closing");
  }
  return session.TakeDescription();
}

absl::Status ConnectionCore::UseStream(WorkerSession& session,
                                       const WorkerDescription& description) {
  ATELIER_RETURN_IF_ERROR(AwaitStream());
  backoff_ = kFirstBackoff;
  Publish(description);
  on_state_(description);
  return Serve(session, description);
}

absl::Status ConnectionCore::AwaitStream() {
  const absl::Time give_up = clock_.Now() + kConnectTimeout;
  while (true) {
    ATELIER_RETURN_IF_ERROR(CheckStream());
    {
      absl::MutexLock lock(&mutex_);
      if (stream_ready_) return absl::OkStatus();
    }
    if (clock_.Now() >= give_up) return absl::UnavailableError("it does not answer ForwardStream");
    WaitForEvent(give_up);
  }
}

absl::Status ConnectionCore::CheckStream() {
  absl::MutexLock lock(&mutex_);
  if (stopping_) return absl::CancelledError("the client is closing");
  return stream_done_ ? lost_ : reset_;
}

absl::Status ConnectionCore::Serve(WorkerSession& session, WorkerDescription description) {
  absl::Time heartbeat = clock_.Now() + kHeartbeatInterval;
  uint64_t responses_before = 0;
  absl::Status retiring;  // not OK: it takes no more calls, those in flight may end
  Change change;
  while (true) {
    WaitForEvent(std::min(heartbeat, change.at));
    ATELIER_RETURN_IF_ERROR(CheckStream());
    ExpireCalls();
    if (session.DescribeAnswered()) {
      const absl::StatusOr<WorkerDescription> now = session.TakeDescription();
      if (now.ok()) GaveSign();
      // A worker too busy for a heartbeat in time, but not for its calls, is alive.
      if (!now.ok() && ResponsesSoFar() == responses_before) return now.status();
      const absl::Status usable = now.ok() ? CheckUsable(*now, description) : absl::OkStatus();
      if (!usable.ok() && retiring.ok()) {
        retiring = usable;
        StopTakingCalls(usable);
        on_state_(Named(usable));
      }
      if (now.ok() && retiring.ok()) Consider(*now, description, change);
    }
    if (retiring.ok() && clock_.Now() >= change.at) {
      description = change.to;
      TakeUp(std::exchange(change, {}));
    }
    if (!retiring.ok() && in_flight_.empty()) return retiring;
    if (!HeartbeatIsDue(heartbeat)) continue;
    heartbeat = clock_.Now() + kHeartbeatInterval;
    if (session.describing()) continue;
    responses_before = ResponsesSoFar();
    session.StartDescribe(kHeartbeatTimeout);
  }
}

void ConnectionCore::Consider(const WorkerDescription& now, const WorkerDescription& used,
                              Change& change) {
  if (now.epoch == used.epoch || now.epoch == change.to.epoch) return;
  change.to = now;
  change.holds_less = HoldsLess(now, used);
  change.at = clock_.Now() + (change.holds_less ? kHoldsLessDelay : absl::ZeroDuration());
}

// Whoever is told sends calls by it, and has sent calls by the former one: none should meet a
// connection that knows less.
void ConnectionCore::TakeUp(const Change& change) {
  if (!change.holds_less) Publish(change.to);
  on_state_(change.to);
  if (change.holds_less) Publish(change.to);
}

void ConnectionCore::GaveSign() {
  std::vector<std::function<void()>> awaiting;
  {
    absl::MutexLock lock(&mutex_);
    awaiting.swap(awaiting_sign_);
  }
  for (const std::function<void()>& heard : awaiting) heard();
}

uint64_t ConnectionCore::ResponsesSoFar() {
  absl::MutexLock lock(&mutex_);
  return responses_;
}

bool ConnectionCore::HeartbeatIsDue(absl::Time planned) {
  absl::MutexLock lock(&mutex_);
  return std::exchange(suspicious_, false) || clock_.Now() >= planned;
}

void ConnectionCore::Publish(const WorkerDescription& description) {
  auto peer = std::make_shared<Peer>();
  peer->description = description;
  for (size_t i = 0; i < description.shards.size(); ++i) {
    for (const int layer : description.shards[i].layers) {
      peer->shards_of_layer[layer].push_back(static_cast<int>(i));
    }
  }
  absl::MutexLock lock(&mutex_);
  if (!stream_done_) peer_ = std::move(peer);
}

void ConnectionCore::StopTakingCalls(const absl::Status& reason) {
  absl::MutexLock lock(&mutex_);
  peer_ = nullptr;
  unusable_ = reason;
}

}  // namespace atelier
