#include "libs/numa/node_arena.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "libs/base/handover.h"
#include "libs/base/status_macros.h"
#include "libs/numa/node_memory.h"
#include "libs/numa/tbb_pool.h"
#include "libs/numa/thread_pinning.h"

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
class Pinning final : public TbbPool::Observer {
 public:
  Pinning(const std::vector<int>& cpus, const std::vector<int>& all_cpus, LogOnce& on_refusal)
      : all_cpus_(all_cpus), on_refusal_(on_refusal) {
    for (const int cpu : cpus) one_cpu_.push_back({cpu});
    handover_.Give();
  }
  ~Pinning() override { handover_.Collect(); }

  void OnEntry(int slot) override {
    handover_.Take();
    Restrict(one_cpu_[static_cast<size_t>(slot) % one_cpu_.size()]);
    handover_.Return();
  }
  void OnExit() override {
    handover_.Take();
    Restrict(all_cpus_);
    handover_.Return();
  }

 private:
  void Restrict(const std::vector<int>& cpus) {
    const absl::Status status = RestrictThread(cpus);
    if (!status.ok()) on_refusal_(status);
  }

  std::vector<std::vector<int>> one_cpu_;  // of each slot: threads come and go between batches
  const std::vector<int> all_cpus_;
  LogOnce& on_refusal_;
  Handover handover_;
};

// One ParallelFor: its shares draw indices from one counter, so threads that come late leave
// nothing undone and the last indices are spread evenly.
struct Loop {
  const int64_t count;
  const std::function<void(int64_t)>& body;
  std::atomic<int64_t> next{0};
  Handover handover{};
};

void RunShare(void* context) {
  Loop& loop = *static_cast<Loop*>(context);
  loop.handover.Take();
  for (int64_t i = loop.next.fetch_add(1, std::memory_order_relaxed); i < loop.count;
       i = loop.next.fetch_add(1, std::memory_order_relaxed)) {
    loop.body(i);
  }
  loop.handover.Return();
}

class TbbNodeArena final : public NodeArena {
 public:
  TbbNodeArena(const NumaNode& node, int num_threads, const Topology& topology, bool pin,
               const Logger& logger)
      : node_(node),
        num_threads_(num_threads),
        // On a machine with one node there is no other memory to keep away from.
        bind_memory_(topology.numa_available && topology.num_system_nodes > 1),
        pin_(pin),
        on_pinning_refused_(logger, "pinning_refused"),
        on_binding_refused_(logger, "memory_binding_refused"),
        pinning_(node.cpus, topology.AllCpus(), on_pinning_refused_),
        pool_(num_threads, pin ? &pinning_ : nullptr) {}

  int num_threads() const override { return num_threads_; }
  int numa_node() const override { return node_.id; }

  void BindCallingThread() override {
    if (!pin_) return;
    const absl::Status status = RestrictThread(node_.cpus);
    if (!status.ok()) on_pinning_refused_(status);
  }

  void ParallelFor(int64_t count, const std::function<void(int64_t)>& body) override {
    Loop loop{count, body};
    loop.handover.Give();
    const int64_t width = std::min<int64_t>(num_threads_, count);
    if (width <= 1) return RunShare(&loop);
    pool_.Run(width, RunShare, &loop);
    loop.handover.Collect();
  }

  absl::StatusOr<std::unique_ptr<NodeMemory>> Allocate(size_t bytes) override {
    return AllocateOnNode({bytes, bind_memory_ ? node_.id : -1}, MemorySystem::Real(),
                          [this](const absl::Status& status) { on_binding_refused_(status); });
  }

  absl::Status PageIn(const uint8_t* data, size_t bytes) override {
    return PageInOnNode(data, {bytes, bind_memory_ ? node_.id : -1},
                        [this](const absl::Status& status) { on_binding_refused_(status); });
  }

 private:
  const NumaNode node_;
  const int num_threads_;
  const bool bind_memory_;
  const bool pin_;
  LogOnce on_pinning_refused_;
  LogOnce on_binding_refused_;
  Pinning pinning_;
  TbbPool pool_;
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
