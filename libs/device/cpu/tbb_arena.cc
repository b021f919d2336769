#include "libs/device/cpu/tbb_arena.h"

#include <algorithm>

#include "tbb/blocked_range.h"
#include "tbb/global_control.h"
#include "tbb/parallel_for.h"
#include "tbb/task_arena.h"

namespace atelier {

struct TbbArena::Impl {
  // oneTBB refuses more threads than CPUs unless told otherwise. The smallest limit in the process
  // holds, so it is never lowered here.
  explicit Impl(int num_threads)
      : limit(tbb::global_control::max_allowed_parallelism,
              std::max(
                  tbb::global_control::active_value(tbb::global_control::max_allowed_parallelism),
                  static_cast<size_t>(num_threads))),
        arena(num_threads) {}
  tbb::global_control limit;
  tbb::task_arena arena;
};

TbbArena::TbbArena(int num_threads) : impl_(std::make_unique<Impl>(num_threads)) {}
TbbArena::~TbbArena() = default;

void TbbArena::ParallelFor(int64_t count, int64_t grain, Body body, void* context) const {
  impl_->arena.execute([&] {
    tbb::parallel_for(
        tbb::blocked_range<int64_t>(0, count, static_cast<size_t>(grain)),
        [&](const tbb::blocked_range<int64_t>& range) {
          body(context, range.begin(), range.end());
        },
        tbb::simple_partitioner());
  });
}

}  // namespace atelier
