#include "libs/device/cpu/cpu_threads.h"

#include "libs/base/handover.h"

namespace atelier {
namespace {

struct Loop {
  const std::function<void(int64_t, int64_t)>& body;
  Handover handover{};
};

void RunPiece(void* context, int64_t begin, int64_t end) {
  Loop& loop = *static_cast<Loop*>(context);
  loop.handover.Take();
  loop.body(begin, end);
  loop.handover.Return();
}

}  // namespace

void CpuThreads::ParallelFor(int64_t count, int64_t grain,
                             const std::function<void(int64_t, int64_t)>& body) const {
  if (count <= 0) return;
  if (num_threads_ == 1 || count <= grain) return body(0, count);
  Loop loop{body};
  loop.handover.Give();
  arena_.ParallelFor(count, grain, RunPiece, &loop);
  loop.handover.Collect();
}

}  // namespace atelier
