#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "libs/transport/forward_serving.h"
#include "libs/transport/shm_segment.h"
#include "libs/transport/shm_wait.h"

namespace atelier {

// How many lanes may look for calls at once, so that many clients do not take all CPUs.
struct ShmSpinners {
  std::atomic<int> now{0};
  int most = 1;
};

// The worker's end of one client's memory: a thread that takes calls out of it and hands them to
// the handler; answers are written by whoever has them. Thread-safe. Shared with the calls in
// flight, which keep the memory until they have been answered.
class ShmLane final : public std::enable_shared_from_this<ShmLane> {
 public:
  // `on_broken` is called once, from the lane's thread, when the client writes what no client of
  // ours writes; the owner should Close then.
  static std::shared_ptr<ShmLane> Start(const ForwardServing& serving,
                                        std::shared_ptr<ShmSegment> segment, absl::Duration spin,
                                        ShmSpinners& spinners,
                                        std::function<void(const absl::Status&)> on_broken);

  // The client has gone: takes nothing more, and its calls count as cancelled. Blocks until the
  // thread has ended; must be called before the last reference goes. Idempotent.
  void Close();
  // Calls that have not been answered.
  int in_flight() const { return in_flight_.load(std::memory_order_acquire); }  // pairs with Answer

 private:
  class Call;

  ShmLane(const ForwardServing& serving, std::shared_ptr<ShmSegment> segment, absl::Duration spin,
          ShmSpinners& spinners, std::function<void(const absl::Status&)> on_broken);

  void Run();
  bool HasRequest();
  // OK also when there is none.
  absl::Status TakeRequest();
  void Handle(uint32_t slot, const ShmRequestHeader& header);
  bool Look();
  void Rest(absl::Duration timeout);
  void Answer(const Call& call, const ForwardReply& reply);

  const ForwardServing serving_;
  const std::shared_ptr<ShmSegment> segment_;
  SpinBudget spin_;
  ShmSpinners& spinners_;
  const std::function<void(const absl::Status&)> on_broken_;
  std::atomic<bool> closing_{false};
  std::atomic<int> in_flight_{0};
  uint32_t next_request_ = 1;  // of the thread only

  absl::Mutex mutex_;
  std::vector<bool> busy_ ABSL_GUARDED_BY(mutex_);  // slots taken and not answered
  uint32_t next_reply_ ABSL_GUARDED_BY(mutex_) = 1;
  std::thread thread_;
};

}  // namespace atelier
