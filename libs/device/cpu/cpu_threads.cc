#include "libs/device/cpu/cpu_threads.h"

#include <algorithm>

#include "tbb/blocked_range.h"
#include "tbb/global_control.h"
#include "tbb/parallel_for.h"
#include "tbb/task_arena.h"

namespace atelier {

struct CpuThreads::Arena {
  // oneTBB refuses more threads than CPUs unless told otherwise. The smallest limit in the process
  // holds, so it is never lowered here.
  explicit Arena(int num_threads)
      : limit(tbb::global_control::max_allowed_parallelism,
              std::max(
                  tbb::global_control::active_value(tbb::global_control::max_allowed_parallelism),
                  static_cast<size_t>(num_threads))),
        arena(num_threads) {}
  tbb::global_control limit;
  tbb::task_arena arena;
};

CpuThreads::CpuThreads(int num_threads)
    : num_threads_(num_threads), arena_(std::make_unique<Arena>(num_threads)) {}
CpuThreads::~CpuThreads() = default;

void CpuThreads::ParallelFor(int64_t count, int64_t grain,
                             const std::function<void(int64_t, int64_t)>& body) const {
  if (count <= 0) return;
  if (num_threads_ == 1 || count <= grain) return body(0, count);
  arena_->arena.execute([&] {
    tbb::parallel_for(
        tbb::blocked_range<int64_t>(0, count, static_cast<size_t>(grain)),
        [&](const tbb::blocked_range<int64_t>& range) { body(range.begin(), range.end()); },
        tbb::simple_partitioner());
  });
}

}  // namespace atelier
