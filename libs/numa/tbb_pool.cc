#include "libs/numa/tbb_pool.h"

#include <algorithm>

#include "tbb/global_control.h"
#include "tbb/parallel_for.h"
#include "tbb/partitioner.h"
#include "tbb/task_arena.h"
#include "tbb/task_scheduler_observer.h"

namespace atelier {
namespace {

class ArenaObserver final : public tbb::task_scheduler_observer {
 public:
  ArenaObserver(tbb::task_arena& arena, TbbPool::Observer& observer)
      : tbb::task_scheduler_observer(arena), observer_(observer) {
    observe(true);
  }
  // Off first: TBB would call a half-destroyed observer.
  ~ArenaObserver() override { observe(false); }

  void on_scheduler_entry(bool is_worker) override {
    const int slot = tbb::this_task_arena::current_thread_index();
    if (is_worker && slot >= 0) observer_.OnEntry(slot);
  }
  void on_scheduler_exit(bool is_worker) override {
    if (is_worker) observer_.OnExit();
  }

 private:
  TbbPool::Observer& observer_;
};

}  // namespace

struct TbbPool::Impl {
  Impl(int num_threads, Observer* told)
      : parallelism(tbb::global_control::max_allowed_parallelism,
                    std::max(static_cast<size_t>(num_threads),
                             tbb::global_control::active_value(
                                 tbb::global_control::max_allowed_parallelism))),
        arena(num_threads) {
    arena.initialize();
    if (told != nullptr) observer = std::make_unique<ArenaObserver>(arena, *told);
  }

  // TBB would otherwise never start more workers than it counted CPUs.
  tbb::global_control parallelism;
  tbb::task_arena arena;
  std::unique_ptr<ArenaObserver> observer;
};

TbbPool::TbbPool(int num_threads, Observer* observer)
    : impl_(std::make_unique<Impl>(num_threads, observer)) {}
TbbPool::~TbbPool() = default;

void TbbPool::Run(int64_t width, void (*share)(void*), void* context) {
  impl_->arena.execute([&] {
    tbb::parallel_for(
        int64_t{0}, width, [&](int64_t) { share(context); }, tbb::simple_partitioner());
  });
}

}  // namespace atelier
