#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "libs/transport/call_stream.h"
#include "libs/transport/shm_segment.h"
#include "libs/transport/shm_wait.h"

namespace atelier {

// The client's end of the memory that a worker shares with it. A call is written into a free slot
// by who makes it; answers are read by who waits in AwaitBriefly, else by a thread of the stream,
// which sleeps meanwhile. Calls beyond the slots wait their turn. Thread-safe.
class ShmClientStream final : public CallStream {
 public:
  // `on_broken` is called from any of the threads when the worker writes what no worker of ours
  // writes, or falls silent; the owner should Close then.
  ShmClientStream(Observer& observer, std::function<void(const absl::Status&)> on_broken)
      : observer_(observer), on_broken_(std::move(on_broken)) {}
  ~ShmClientStream() override;

  bool is_open() const { return open_.load(std::memory_order_acquire); }  // pairs with Open
  // By the channel, one after the other from one thread. Open makes it ready.
  void Open(std::shared_ptr<ShmSegment> segment, absl::Duration spin);
  // Takes the answers that have come, and then tells the observer that the stream is done.
  void Close(const absl::Status& status);

  Limits limits() const override;
  absl::Status Send(const CallMessage& message) override;
  void Cancel(uint64_t id) override;
  void AwaitBriefly(absl::FunctionRef<bool()> over) override;

 private:
  using Steady = std::chrono::steady_clock;

  struct Posted {
    uint64_t id = 0;
    uint64_t epoch = 0;
    bool posted = false;
  };
  struct Waiting {
    CallMessage message;
    Steady::time_point since;
  };
  struct Answered {
    uint32_t slot = 0;
    uint64_t id = 0;
    ShmReplyHeader header;
  };

  void Run();
  bool HasReply();
  // Takes the next answer to the observer; false when there is none.
  bool TakeReply();
  absl::StatusOr<std::optional<Answered>> NextReply();
  bool Look();
  void Rest();
  // Not OK when the worker has been silent too long.
  absl::Status CheckHeartbeat();
  bool Active();

  absl::Status Post(uint32_t slot, const CallMessage& message, Steady::duration waited);
  void Release(uint32_t slot);
  void SendWaiting();
  void Break(const absl::Status& status);

  Observer& observer_;
  const std::function<void(const absl::Status&)> on_broken_;
  // Set by Open, before OnStreamReady.
  std::shared_ptr<ShmSegment> segment_;
  std::optional<SpinBudget> receiver_spin_;
  std::optional<SpinBudget> caller_spin_;
  std::thread receiver_;

  std::atomic<bool> open_{false};
  std::atomic<bool> closing_{false};
  std::atomic<bool> broken_{false};
  std::atomic<int> in_slots_{0};
  std::atomic<uint64_t> posts_{0};
  std::atomic<bool> sleeps_deeply_{false};
  std::atomic<uint32_t> next_reply_{1};  // written under reply_mutex_

  absl::Mutex slots_mutex_;
  std::vector<uint32_t> free_slots_ ABSL_GUARDED_BY(slots_mutex_);  // the warmest last
  std::vector<Posted> slots_ ABSL_GUARDED_BY(slots_mutex_);
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(slots_mutex_);
  uint32_t next_request_ ABSL_GUARDED_BY(slots_mutex_) = 1;

  absl::Mutex reply_mutex_;
  // While somebody looks nobody is to be woken.
  absl::Mutex bell_mutex_;
  int lookers_ ABSL_GUARDED_BY(bell_mutex_) = 0;
  bool resting_ ABSL_GUARDED_BY(bell_mutex_) = false;

  // Of the receiver only.
  uint64_t last_heartbeat_ = 0;
  Steady::time_point heard_;  // when the heartbeat last changed
  Steady::time_point checked_;
  uint64_t last_posts_ = 0;
  Steady::time_point last_activity_;
};

}  // namespace atelier
