#include "tools/atelier/machine_facts.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "libs/base/log.h"
#include "libs/base/status_macros.h"
#include "libs/numa/cpu_name.h"
#include "libs/numa/node_arena.h"
#include "libs/numa/node_memory.h"
#include "libs/numa/system_files.h"
#include "libs/numa/thread_pinning.h"

namespace atelier {
namespace {

constexpr int64_t kHugePageBytes = int64_t{2} << 20;
constexpr size_t kPieceBytes = size_t{8} << 20;  // a thread's next piece of the stream

std::string FirstLine(const std::string& path) {
  const std::string text = ReadSystemFile(path).value_or("");
  return std::string(absl::StripAsciiWhitespace(text.substr(0, text.find('\n'))));
}

std::optional<int64_t> Setting(const std::string& path) {
  int64_t value = 0;
  return absl::SimpleAtoi(FirstLine(path), &value) ? std::optional<int64_t>(value) : std::nullopt;
}

KernelSettings ReadKernelSettings(const std::string& root) {
  const std::string sys = absl::StrCat(root, "/proc/sys/");
  KernelSettings kernel;
  kernel.numa_balancing = Setting(sys + "kernel/numa_balancing");
  kernel.zone_reclaim_mode = Setting(sys + "vm/zone_reclaim_mode");
  kernel.overcommit_memory = Setting(sys + "vm/overcommit_memory");
  kernel.max_map_count = Setting(sys + "vm/max_map_count");
  kernel.swappiness = Setting(sys + "vm/swappiness");
  const std::string meminfo = ReadSystemFile(absl::StrCat(root, "/proc/meminfo")).value_or("");
  kernel.swap_bytes = FindCounter(meminfo, "SwapTotal:").value_or(0);
  kernel.governor =
      FirstLine(absl::StrCat(root, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"));
  return kernel;
}

int64_t AsBytes(rlim_t limit) {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  if (limit == RLIM_INFINITY || limit > static_cast<rlim_t>(kNone)) return kNone;
  return static_cast<int64_t>(limit);
}

void ReadLimits(MachineFacts& facts) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0) facts.lockable_bytes = AsBytes(limit.rlim_cur);
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    facts.open_files = AsBytes(limit.rlim_cur);
    facts.open_files_hard = AsBytes(limit.rlim_max);
  }
}

// On a thread of its own, so that the caller keeps its CPUs.
absl::Status TryPinning(const Topology& topology) {
  absl::Status status;
  std::thread([&] { status = RestrictThread({topology.nodes.front().cpus.front()}); }).join();
  return status;
}

absl::Status TryBinding(const Topology& topology) {
  if (!topology.numa_available) return absl::OkStatus();
  absl::Status refused;
  const NodeBytes page{4096, topology.nodes.front().id};
  const auto memory = AllocateOnNode(page, MemorySystem::Real(),
                                     [&refused](const absl::Status& status) { refused = status; });
  return memory.ok() ? refused : memory.status();
}

uint64_t ReadPiece(const uint8_t* data) {
  uint64_t sums[8] = {};
  for (size_t i = 0; i < kPieceBytes; i += sizeof(sums)) {
    uint64_t words[8];
    std::memcpy(words, data + i, sizeof(words));
    for (size_t j = 0; j < 8; ++j) sums[j] |= words[j];
  }
  uint64_t all = 0;
  for (const uint64_t sum : sums) all |= sum;
  return all;
}

}  // namespace

MachineFacts GatherMachineFacts(const std::string& root) {
  MachineFacts facts;
  facts.cpu_name = CpuName(root);
  facts.features = CpuFeatures::Detect();
  facts.topology = Topology::Detect(root);
  facts.pinning = TryPinning(facts.topology);
  facts.memory_binding = TryBinding(facts.topology);
  facts.huge_pages = HugePageUse::Read(root);
  facts.free_huge_page_bytes = FreeHugePages(-1, root) * kHugePageBytes;
  facts.available_memory_bytes = AvailableMemoryBytes(-1, root);
  ReadLimits(facts);
  facts.gpu_driver = FirstLine(absl::StrCat(root, "/proc/driver/nvidia/version"));
  facts.kernel = ReadKernelSettings(root);
  return facts;
}

absl::StatusOr<ReadBandwidth> MeasureReadBandwidth(const Topology& topology, absl::Duration time,
                                                   int64_t memory_bytes) {
  const Logger quiet(Severity::kError);
  ATELIER_ASSIGN_OR_RETURN(const auto arena, NodeArena::Create({}, topology, quiet));
  const int64_t pieces = std::max<int64_t>(1, memory_bytes / static_cast<int64_t>(kPieceBytes));
  ATELIER_ASSIGN_OR_RETURN(const auto memory,
                           arena->Allocate(static_cast<size_t>(pieces) * kPieceBytes));
  // Untouched pages would all be the one page of zeros.
  arena->ParallelFor(pieces, [&](int64_t i) {
    std::memset(memory->data() + static_cast<size_t>(i) * kPieceBytes, 1, kPieceBytes);
  });
  std::atomic<uint64_t> sink{0};
  double best = 0;
  const absl::Time end = absl::Now() + time;
  do {
    const absl::Time start = absl::Now();
    arena->ParallelFor(pieces, [&](int64_t i) {
      sink |= ReadPiece(memory->data() + static_cast<size_t>(i) * kPieceBytes);
    });
    const double taken = absl::ToDoubleSeconds(absl::Now() - start);
    best = std::max(best, static_cast<double>(memory->size()) / std::max(taken, 1e-9) * 1e-9);
  } while (absl::Now() < end);
  return ReadBandwidth{best, arena->num_threads()};
}

}  // namespace atelier
