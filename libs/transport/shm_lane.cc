#include "libs/transport/shm_lane.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/transport/shm_codec.h"

namespace atelier {

class ShmLane::Call final : public CallContext {
 public:
  Call(std::shared_ptr<ShmLane> lane, uint32_t slot, const ShmRequestHeader& header)
      : lane_(std::move(lane)), slot_(slot), sequence_(header.sequence), epoch_(header.epoch) {}

  bool Cancelled() const override {
    if (lane_->closing_.load(std::memory_order_relaxed)) return true;
    return lane_->segment_->header(slot_).cancelled.load(std::memory_order_relaxed) == sequence_;
  }
  void Answer(const ForwardReply& reply) const { lane_->Answer(*this, reply); }

  uint32_t slot() const { return slot_; }
  uint64_t sequence() const { return sequence_; }
  uint64_t epoch() const { return epoch_; }

 private:
  const std::shared_ptr<ShmLane> lane_;
  const uint32_t slot_;
  const uint64_t sequence_;
  const uint64_t epoch_;
};

ShmLane::ShmLane(const ForwardServing& serving, std::shared_ptr<ShmSegment> segment,
                 absl::Duration spin, ShmSpinners& spinners,
                 std::function<void(const absl::Status&)> on_broken)
    : serving_(serving),
      segment_(std::move(segment)),
      spin_(UsableSpin(spin)),
      spinners_(spinners),
      on_broken_(std::move(on_broken)),
      busy_(segment_->geometry().num_slots, false) {}

std::shared_ptr<ShmLane> ShmLane::Start(const ForwardServing& serving,
                                        std::shared_ptr<ShmSegment> segment, absl::Duration spin,
                                        ShmSpinners& spinners,
                                        std::function<void(const absl::Status&)> on_broken) {
  const std::shared_ptr<ShmLane> lane(
      new ShmLane(serving, std::move(segment), spin, spinners, std::move(on_broken)));
  lane->thread_ = std::thread([raw = lane.get()] { raw->Run(); });
  return lane;
}

void ShmLane::Close() {
  closing_.store(true, std::memory_order_relaxed);
  RingAlways(segment_->control().worker_bell);
  if (thread_.joinable()) thread_.join();
}

void ShmLane::Run() {
  using Steady = std::chrono::steady_clock;
  const auto restless = absl::ToChronoNanoseconds(kShmRestless);
  auto last_request = Steady::now();
  while (!closing_.load(std::memory_order_relaxed)) {
    bool served = false;
    while (HasRequest() && !closing_.load(std::memory_order_relaxed)) {
      if (absl::Status status = TakeRequest(); !status.ok()) return on_broken_(status);
      served = true;
    }
    segment_->control().heartbeat.fetch_add(1, std::memory_order_relaxed);
    if (served) last_request = Steady::now();
    if (served && Look()) continue;
    const bool active = in_flight() > 0 || Steady::now() - last_request < restless;
    Rest(active ? kShmHeartbeat : absl::InfiniteDuration());
  }
}

bool ShmLane::HasRequest() {
  const uint64_t notice = segment_->request_notice(next_request_).load(std::memory_order_acquire);
  return notice >> 32 == next_request_;  // the load pairs with the client's post
}

// For what follows on what was just served.
bool ShmLane::Look() {
  const int looking = spinners_.now.fetch_add(1, std::memory_order_relaxed);
  const absl::Duration budget = looking < spinners_.most ? spin_.Next() : absl::ZeroDuration();
  const bool caught = SpinUntil(
      budget, [this] { return HasRequest() || closing_.load(std::memory_order_relaxed); });
  spinners_.now.fetch_sub(1, std::memory_order_relaxed);
  if (budget > absl::ZeroDuration()) caught ? spin_.Caught() : spin_.Missed();
  return caught;
}

void ShmLane::Rest(absl::Duration timeout) {
  ShmBell& bell = segment_->control().worker_bell;
  const uint32_t armed = Arm(bell);
  if (!HasRequest() && !closing_.load(std::memory_order_relaxed)) Sleep(bell, armed, timeout);
  Disarm(bell);
}

absl::Status ShmLane::TakeRequest() {
  // Once: the client may be rewriting it.
  const uint64_t notice = segment_->request_notice(next_request_).load(std::memory_order_acquire);
  if (notice >> 32 != next_request_) return absl::OkStatus();
  const uint32_t slot = static_cast<uint32_t>(notice);
  if (slot >= segment_->geometry().num_slots) {
    return absl::InvalidArgumentError(
        absl::StrCat("the client posted slot ", slot, " of ", segment_->geometry().num_slots));
  }
  {
    absl::MutexLock lock(&mutex_);
    if (busy_[slot]) {
      return absl::InvalidArgumentError(
          absl::StrCat("the client posted slot ", slot, " again before it was answered"));
    }
    busy_[slot] = true;
  }
  ++next_request_;
  in_flight_.fetch_add(1, std::memory_order_relaxed);
  Handle(slot, ReadOnce(segment_->header(slot).request));
  return absl::OkStatus();
}

void ShmLane::Handle(uint32_t slot, const ShmRequestHeader& header) {
  const auto call = std::make_shared<Call>(shared_from_this(), slot, header);
  absl::StatusOr<ForwardRequest> request =
      ReadShmRequest(header, segment_->request_payload(slot), serving_.shape, segment_);
  if (!request.ok()) {
    serving_.handler.OnRefused(request.status());
    ForwardReply refusal;
    refusal.status = request.status();
    return call->Answer(refusal);
  }
  request->deadline =
      serving_.clock.Now() + RequestTimeout(header.timeout_us, serving_.default_timeout);
  serving_.handler.Forward(*std::move(request), call,
                           [call](const ForwardReply& reply) { call->Answer(reply); });
}

void ShmLane::Answer(const Call& call, const ForwardReply& reply) {
  const uint32_t slot = call.slot();
  ForwardReply nothing;
  nothing.status = absl::CancelledError("the caller has gone");
  // Nobody waits for the sums of a cancelled call, but for its slot.
  ShmReplyHeader header =
      WriteShmReply(call.Cancelled() ? nothing : reply, segment_->reply_payload(slot));
  header.epoch = call.epoch();
  header.sequence = call.sequence();
  segment_->header(slot).reply = header;
  {
    absl::MutexLock lock(&mutex_);
    busy_[slot] = false;
    const uint32_t number = next_reply_++;
    // Pairs with the client's look: who sees the notice sees the answer.
    segment_->reply_notice(number).store(MakeNotice(number, slot), std::memory_order_release);
  }
  in_flight_.fetch_sub(1, std::memory_order_release);  // pairs with in_flight()
  Ring(segment_->control().client_bell);
}

}  // namespace atelier
