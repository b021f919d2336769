#include "libs/transport/shm_client_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/base/status_macros.h"
#include "libs/transport/shm_codec.h"

namespace atelier {
namespace {

// Messages that may wait for a slot; one more is refused.
constexpr size_t kMaxWaiting = 1024;
// Calls of `over` are dearer than looks at the memory.
constexpr int kLooksPerAsking = 16;

}  // namespace

ShmClientStream::~ShmClientStream() {
  closing_ = true;
  if (!receiver_.joinable()) return;
  RingAlways(segment_->control().client_bell);
  receiver_.join();
}

void ShmClientStream::Open(std::shared_ptr<ShmSegment> segment, absl::Duration spin) {
  const uint32_t num_slots = segment->geometry().num_slots;
  segment_ = std::move(segment);
  receiver_spin_.emplace(UsableSpin(spin));
  caller_spin_.emplace(UsableSpin(spin));
  {
    absl::MutexLock lock(&slots_mutex_);
    slots_.resize(num_slots);
    for (uint32_t slot = num_slots; slot-- > 0;) free_slots_.push_back(slot);
  }
  heard_ = last_activity_ = Steady::now();
  open_.store(true, std::memory_order_release);  // pairs with the loads of who may come too early
  receiver_ = std::thread([this] { Run(); });
  observer_.OnStreamReady();
}

void ShmClientStream::Close(const absl::Status& status) {
  closing_ = true;
  if (receiver_.joinable()) {
    RingAlways(segment_->control().client_bell);
    receiver_.join();
    // What the worker answered before it went counts.
    while (TakeReply()) {
    }
  }
  observer_.OnStreamDone(status);
}

CallStream::Limits ShmClientStream::limits() const {
  const ShmGeometry& geometry = segment_->geometry();
  return {static_cast<int64_t>(geometry.request_bytes) - kShmOverheadBytes,
          static_cast<int64_t>(geometry.reply_bytes) - kShmOverheadBytes};
}

absl::Status ShmClientStream::Send(const CallMessage& message) {
  uint32_t slot = 0;
  {
    absl::MutexLock lock(&slots_mutex_);
    if (closing_ || broken_) return absl::OkStatus();
    if (free_slots_.empty() || !waiting_.empty()) {
      if (waiting_.size() >= kMaxWaiting) {
        return absl::ResourceExhaustedError(absl::StrCat(
            kMaxWaiting, " messages wait for one of the ", slots_.size(), " slots already"));
      }
      waiting_.push_back({message, Steady::now()});
      return absl::OkStatus();
    }
    slot = free_slots_.back();
    free_slots_.pop_back();
    slots_[slot] = {message.id, message.epoch, false};
  }
  return Post(slot, message, Steady::duration::zero());
}

// The slot is taken, and nobody else writes to it.
absl::Status ShmClientStream::Post(uint32_t slot, const CallMessage& message,
                                   Steady::duration waited) {
  const auto waited_us =
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(waited).count());
  // 0 would mean the worker's default.
  const uint64_t timeout_us = message.timeout_us > waited_us ? message.timeout_us - waited_us : 1;
  const absl::StatusOr<ShmRequestHeader> header =
      WriteShmRequest(message, timeout_us, segment_->request_payload(slot));
  if (!header.ok()) {
    Release(slot);
    return header.status();
  }
  segment_->header(slot).request = *header;
  {
    absl::MutexLock lock(&slots_mutex_);
    slots_[slot].posted = true;
    in_slots_.fetch_add(1, std::memory_order_relaxed);
    const uint32_t number = next_request_++;
    // Pairs with the worker's look: who sees the notice sees the request.
    segment_->request_notice(number).store(MakeNotice(number, slot), std::memory_order_release);
  }
  posts_.fetch_add(1, std::memory_order_relaxed);
  Ring(segment_->control().worker_bell);  // has the fence that orders posts_ before the next load
  if (sleeps_deeply_.load(std::memory_order_relaxed) && sleeps_deeply_.exchange(false)) {
    RingAlways(segment_->control().client_bell);  // somebody has to watch the worker now
  }
  return absl::OkStatus();
}

void ShmClientStream::Release(uint32_t slot) {
  {
    absl::MutexLock lock(&slots_mutex_);
    slots_[slot] = {};
    free_slots_.push_back(slot);
    if (waiting_.empty()) return;
  }
  SendWaiting();
}

void ShmClientStream::SendWaiting() {
  while (true) {
    Waiting next;
    uint32_t slot = 0;
    {
      absl::MutexLock lock(&slots_mutex_);
      if (waiting_.empty() || free_slots_.empty() || closing_ || broken_) return;
      next = std::move(waiting_.front());
      waiting_.pop_front();
      slot = free_slots_.back();
      free_slots_.pop_back();
      slots_[slot] = {next.message.id, next.message.epoch, false};
    }
    const absl::Status posted = Post(slot, next.message, Steady::now() - next.since);
    if (posted.ok()) continue;
    observer_.OnAnswer(next.message.id, [&](const ExpectedSums&) {
      ForwardReply reply;
      reply.status = posted;
      return reply;
    });
  }
}

void ShmClientStream::Cancel(uint64_t id) {
  absl::MutexLock lock(&slots_mutex_);
  const auto waits = std::find_if(waiting_.begin(), waiting_.end(),
                                  [id](const Waiting& w) { return w.message.id == id; });
  if (waits != waiting_.end()) {
    waiting_.erase(waits);
    return;
  }
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) {
    if (slots_[slot].id != id) continue;
    segment_->header(slot).cancelled.store(id, std::memory_order_relaxed);
  }
}

bool ShmClientStream::HasReply() {
  const uint32_t number = next_reply_.load(std::memory_order_relaxed);
  const uint64_t notice = segment_->reply_notice(number).load(std::memory_order_acquire);
  return notice >> 32 == number && !broken_.load(std::memory_order_relaxed);
}

absl::StatusOr<std::optional<ShmClientStream::Answered>> ShmClientStream::NextReply() {
  absl::MutexLock lock(&reply_mutex_);
  const uint32_t number = next_reply_.load(std::memory_order_relaxed);
  // Once: the worker may be rewriting it. Pairs with its post.
  const uint64_t notice = segment_->reply_notice(number).load(std::memory_order_acquire);
  if (notice >> 32 != number || broken_) return std::nullopt;
  Answered answered;
  answered.slot = static_cast<uint32_t>(notice);
  if (answered.slot >= segment_->geometry().num_slots) {
    return absl::InternalError(absl::StrCat("it answered in slot ", answered.slot, " of ",
                                            segment_->geometry().num_slots));
  }
  answered.header = ReadOnce(segment_->header(answered.slot).reply);
  {
    absl::MutexLock slots_lock(&slots_mutex_);
    Posted& posted = slots_[answered.slot];
    if (!posted.posted || posted.id != answered.header.sequence ||
        posted.epoch != answered.header.epoch) {
      return absl::InternalError(absl::StrCat("it answered sequence=", answered.header.sequence,
                                              " epoch=", answered.header.epoch, " in slot ",
                                              answered.slot, ", which holds no such call"));
    }
    posted.posted = false;
    answered.id = posted.id;
  }
  next_reply_.store(number + 1, std::memory_order_relaxed);
  return answered;
}

bool ShmClientStream::TakeReply() {
  absl::StatusOr<std::optional<Answered>> next = NextReply();
  if (!next.ok()) Break(next.status());
  if (!next.ok() || !next->has_value()) return false;
  const Answered& answered = **next;
  in_slots_.fetch_sub(1, std::memory_order_relaxed);
  bool released = false;
  observer_.OnAnswer(answered.id, [&](const ExpectedSums& expected) {
    ForwardReply reply =
        ReadShmReply(answered.header, segment_->reply_payload(answered.slot), expected);
    // Before the callback, which may make the next call.
    Release(answered.slot);
    released = true;
    return reply;
  });
  if (!released) Release(answered.slot);
  return true;
}

void ShmClientStream::Break(const absl::Status& status) {
  if (!broken_.exchange(true)) on_broken_(status);
}

void ShmClientStream::AwaitBriefly(absl::FunctionRef<bool()> over) {
  if (!is_open()) return;
  const absl::Duration budget = caller_spin_->Next();
  if (budget <= absl::ZeroDuration()) return;
  {
    absl::MutexLock lock(&bell_mutex_);
    ++lookers_;
    Disarm(segment_->control().client_bell);
  }
  int looks = 0;
  const bool caught = SpinUntil(budget, [&] {
    const bool took = HasReply() && TakeReply();
    return (took || looks++ % kLooksPerAsking == 0) && over();
  });
  caught ? caller_spin_->Caught() : caller_spin_->Missed();
  {
    absl::MutexLock lock(&bell_mutex_);
    if (--lookers_ == 0 && resting_) Arm(segment_->control().client_bell);
  }
  // What came between the last look and the arming rang no bell.
  while (HasReply() && TakeReply()) {
  }
}

void ShmClientStream::Run() {
  while (!closing_ && !broken_) {
    bool took = false;
    while (TakeReply()) took = true;
    if (took && Look()) continue;
    Rest();
    const absl::Status heard = CheckHeartbeat();
    if (!heard.ok()) Break(heard);
  }
}

// For what follows on what has just come, unless a caller looks.
bool ShmClientStream::Look() {
  {
    absl::MutexLock lock(&bell_mutex_);
    if (lookers_ > 0) return false;
  }
  const absl::Duration budget = receiver_spin_->Next();
  const bool caught = SpinUntil(budget, [this] { return HasReply() || closing_; });
  if (budget > absl::ZeroDuration()) caught ? receiver_spin_->Caught() : receiver_spin_->Missed();
  return caught;
}

void ShmClientStream::Rest() {
  ShmBell& bell = segment_->control().client_bell;
  const bool active = Active();
  if (!active) {
    sleeps_deeply_.store(true);
    // Pairs with the fence in the Ring of Post: one of both sides sees the other.
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  uint32_t armed = 0;
  bool look_again = false;
  {
    absl::MutexLock lock(&bell_mutex_);
    resting_ = true;
    if (lookers_ == 0) {
      armed = Arm(bell);
      look_again = HasReply();
    } else {
      armed = bell.word.load(std::memory_order_acquire);  // the last who looks will arm it
    }
  }
  const bool posted = !active && posts_.load(std::memory_order_relaxed) != last_posts_;
  if (!look_again && !posted && !closing_) {
    Sleep(bell, armed, active ? kShmHeartbeat * 2 : absl::InfiniteDuration());
  }
  sleeps_deeply_.store(false);
  absl::MutexLock lock(&bell_mutex_);
  resting_ = false;
}

// Whether calls are in flight or were a moment ago.
bool ShmClientStream::Active() {
  const uint64_t posts = posts_.load(std::memory_order_relaxed);
  const Steady::time_point now = Steady::now();
  if (posts != std::exchange(last_posts_, posts) || in_slots_ > 0) last_activity_ = now;
  return now - last_activity_ < absl::ToChronoNanoseconds(kShmRestless);
}

absl::Status ShmClientStream::CheckHeartbeat() {
  const Steady::time_point now = Steady::now();
  const uint64_t heartbeat = segment_->control().heartbeat.load(std::memory_order_relaxed);
  // A silence that this thread did not watch, because it slept or had no CPU, is none.
  const bool watched = now - checked_ < absl::ToChronoNanoseconds(kShmHeartbeat * 4);
  checked_ = now;
  if (heartbeat != last_heartbeat_ || in_slots_ == 0 || !watched) {
    last_heartbeat_ = heartbeat;
    heard_ = now;
    return absl::OkStatus();
  }
  if (now - heard_ < absl::ToChronoNanoseconds(kShmLongestSilence)) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("it has given no sign of life for ",
                                             absl::FormatDuration(kShmLongestSilence),
                                             " with calls in flight"));
}

}  // namespace atelier
