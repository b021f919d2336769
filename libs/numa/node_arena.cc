#include "libs/numa/node_arena.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "libs/base/status_macros.h"
#include "libs/numa/node_memory.h"
#include "libs/numa/thread_pinning.h"
#include "tbb/global_control.h"
#include "tbb/parallel_for.h"
#include "tbb/partitioner.h"
#include "tbb/task_arena.h"
#include "tbb/task_scheduler_observer.h"

namespace atelier {
namespace {

// Logs the first failure of its kind: a machine that refuses once refuses every time.
class LogOnce {
 public:
  LogOnce(const Logger& logger, absl::string_view event) : logger_(logger), event_(event) {}

  void operator()(const absl::Status& status) {
    if (logged_.exchange(true)) return;
    logger_.Warning(event_, {Kv("reason", status.message())});
  }

 private:
  const Logger& logger_;
  absl::string_view event_;
  std::atomic<bool> logged_{false};
};

// Pins each of the arena's own threads to the CPU of its slot, and gives the thread its former
// freedom back when TBB lends it to another arena. Threads that only call into the arena are left
// alone: they belong to someone else, and with one slot unpinned the scheduler finds the free CPU.
class PinningObserver final : public tbb::task_scheduler_observer {
 public:
  PinningObserver(tbb::task_arena& arena, const std::vector<int>& cpus,
                  const std::vector<int>& all_cpus, LogOnce& on_refusal)
      : tbb::task_scheduler_observer(arena),
        cpus_(cpus),
        all_cpus_(all_cpus),
        on_refusal_(on_refusal) {
    observe(true);
  }
  // Off first: TBB would call a half-destroyed observer.
  ~PinningObserver() override { observe(false); }

  void on_scheduler_entry(bool is_worker) override {
    const int slot = tbb::this_task_arena::current_thread_index();
    if (!is_worker || slot < 0) return;
    Restrict({cpus_[static_cast<size_t>(slot) % cpus_.size()]});
  }
  void on_scheduler_exit(bool is_worker) override {
    if (is_worker) Restrict(all_cpus_);
  }

 private:
  void Restrict(const std::vector<int>& cpus) {
    const absl::Status status = RestrictThread(cpus);
    if (!status.ok()) on_refusal_(status);
  }

  const std::vector<int> cpus_;
  const std::vector<int> all_cpus_;
  LogOnce& on_refusal_;
};

class TbbNodeArena final : public NodeArena {
 public:
  TbbNodeArena(const NumaNode& node, int num_threads, const Topology& topology, bool pin,
               const Logger& logger)
      : node_(node),
        num_threads_(num_threads),
        // On a machine with one node there is no other memory to keep away from.
        bind_memory_(topology.numa_available && topology.num_system_nodes > 1),
        pin_(pin),
        parallelism_(tbb::global_control::max_allowed_parallelism,
                     std::max(static_cast<size_t>(num_threads),
                              tbb::global_control::active_value(
                                  tbb::global_control::max_allowed_parallelism))),
        arena_(num_threads),
        on_pinning_refused_(logger, "pinning_refused"),
        on_binding_refused_(logger, "memory_binding_refused") {
    arena_.initialize();
    if (pin) {
      observer_ = std::make_unique<PinningObserver>(arena_, node.cpus, topology.AllCpus(),
                                                    on_pinning_refused_);
    }
  }

  int num_threads() const override { return num_threads_; }
  int numa_node() const override { return node_.id; }

  void BindCallingThread() override {
    if (!pin_) return;
    const absl::Status status = RestrictThread(node_.cpus);
    if (!status.ok()) on_pinning_refused_(status);
  }

  void ParallelFor(int64_t count, const std::function<void(int64_t)>& body) override {
    std::atomic<int64_t> next{0};
    const auto work = [&](int64_t) {
      for (int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < count;
           i = next.fetch_add(1, std::memory_order_relaxed)) {
        body(i);
      }
    };
    const int64_t width = std::min<int64_t>(num_threads_, count);
    if (width <= 1) return work(0);
    // One task a thread, which all draw from one counter: threads that come late leave nothing
    // undone, and the last indices are spread evenly.
    arena_.execute([&] { tbb::parallel_for(int64_t{0}, width, work, tbb::simple_partitioner()); });
  }

  absl::StatusOr<std::unique_ptr<NodeMemory>> Allocate(size_t bytes) override {
    if (bytes == 0) return absl::InvalidArgumentError("bytes=0: nothing to allocate");
    ATELIER_ASSIGN_OR_RETURN(std::unique_ptr<NodeMemory> memory, MapMemory(bytes));
    if (bind_memory_) {
      const absl::Status bound = BindToNode(*memory, node_.id);
      if (!bound.ok()) on_binding_refused_(bound);
    }
    return memory;
  }

 private:
  const NumaNode node_;
  const int num_threads_;
  const bool bind_memory_;
  const bool pin_;
  // TBB would otherwise never start more workers than it counted CPUs.
  tbb::global_control parallelism_;
  tbb::task_arena arena_;
  LogOnce on_pinning_refused_;
  LogOnce on_binding_refused_;
  std::unique_ptr<PinningObserver> observer_;
};

absl::StatusOr<NumaNode> ChooseNode(int numa_node, const Topology& topology) {
  if (numa_node == -1) {
    return *std::min_element(
        topology.nodes.begin(), topology.nodes.end(),
        [](const NumaNode& a, const NumaNode& b) { return a.cpus.front() < b.cpus.front(); });
  }
  if (const NumaNode* const node = topology.FindNode(numa_node)) return *node;
  const std::string ids =
      absl::StrJoin(topology.nodes, ", ",
                    [](std::string* out, const NumaNode& node) { absl::StrAppend(out, node.id); });
  return absl::InvalidArgumentError(absl::StrCat("numa_node=", numa_node,
                                                 ": this process may use CPUs of node ", ids,
                                                 " only (-1 chooses one)"));
}

absl::StatusOr<int> ChooseThreads(int num_threads, const NumaNode& node, double cpu_quota) {
  const int cpus = static_cast<int>(node.cpus.size());
  if (num_threads < 0 || num_threads > cpus) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_threads=", num_threads, ": node ", node.id, " has ", cpus,
                     " CPUs for this process; use 1 to ", cpus, ", or 0 for all"));
  }
  if (num_threads > 0) return num_threads;
  if (cpu_quota <= 0) return cpus;
  return std::clamp(static_cast<int>(std::ceil(std::min<double>(cpu_quota, cpus))), 1, cpus);
}

}  // namespace

absl::StatusOr<std::unique_ptr<NodeArena>> NodeArena::Create(const NodeArenaOptions& options,
                                                             const Topology& topology,
                                                             const Logger& logger) {
  ATELIER_ASSIGN_OR_RETURN(const NumaNode node, ChooseNode(options.numa_node, topology));
  ATELIER_ASSIGN_OR_RETURN(const int num_threads,
                           ChooseThreads(options.num_threads, node, topology.cpu_quota));
  return std::make_unique<TbbNodeArena>(node, num_threads, topology, options.pin_threads, logger);
}

}  // namespace atelier
