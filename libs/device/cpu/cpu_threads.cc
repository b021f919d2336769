#include "libs/device/cpu/cpu_threads.h"

#include <atomic>

namespace atelier {
namespace {

// One ParallelFor. TBB orders its start before the pieces and the pieces before its end; the
// atomics say so again to ThreadSanitizer, which does not see inside TBB.
struct Loop {
  const std::function<void(int64_t, int64_t)>& body;
  std::atomic<bool> started{false};
  std::atomic<int64_t> finished_pieces{0};
};

void RunPiece(void* context, int64_t begin, int64_t end) {
  Loop& loop = *static_cast<Loop*>(context);
  (void)loop.started.load(std::memory_order_acquire);  // pairs with the store in ParallelFor
  loop.body(begin, end);
  loop.finished_pieces.fetch_add(1, std::memory_order_release);  // pairs with the load there
}

}  // namespace

void CpuThreads::ParallelFor(int64_t count, int64_t grain,
                             const std::function<void(int64_t, int64_t)>& body) const {
  if (count <= 0) return;
  if (num_threads_ == 1 || count <= grain) return body(0, count);
  Loop loop{body};
  loop.started.store(true, std::memory_order_release);
  arena_.ParallelFor(count, grain, RunPiece, &loop);
  (void)loop.finished_pieces.load(std::memory_order_acquire);
}

}  // namespace atelier
