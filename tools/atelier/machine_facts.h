#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "libs/kernels/cpu_features.h"
#include "libs/numa/huge_pages.h"
#include "libs/numa/topology.h"

namespace atelier {

// What the system is set to, as far as workers feel it. nullopt = it could not be read.
struct KernelSettings {
  std::optional<int64_t> numa_balancing;
  std::optional<int64_t> zone_reclaim_mode;
  std::optional<int64_t> overcommit_memory;
  std::optional<int64_t> max_map_count;
  std::optional<int64_t> swappiness;
  int64_t swap_bytes = 0;
  std::string governor;  // of CPU 0's frequency; empty = the machine does not say
};

// What a host offers a worker. A plain value, so that tests can invent hosts.
struct MachineFacts {
  std::string cpu_name;
  CpuFeatures features;
  Topology topology;
  absl::Status pinning;         // whether a thread may choose its CPUs
  absl::Status memory_binding;  // whether memory can be bound to a node
  HugePageUse huge_pages;
  int64_t free_huge_page_bytes = 0;  // reserved by the administrator and unused
  int64_t available_memory_bytes = 0;
  int64_t lockable_bytes = 0;  // RLIMIT_MEMLOCK; the greatest value = no limit
  int64_t open_files = 0;      // RLIMIT_NOFILE, soft
  int64_t open_files_hard = 0;
  std::string gpu_driver;  // its version line; empty = none
  KernelSettings kernel;
};

// Reads /proc, /sys and the control groups below `root`; asks the kernel for the rest, which
// changes nothing of this process but its permission for AMX tiles.
MachineFacts GatherMachineFacts(const std::string& root = "/");

struct ReadBandwidth {
  double gb_per_s = 0;
  int threads = 0;
};
// What the memory gives to sequential reads by all threads that a worker would have: the best of
// the passes that fit in `time`, so that a busy neighbour does not count. `memory_bytes` is
// allocated for it: take several times the last-level cache.
absl::StatusOr<ReadBandwidth> MeasureReadBandwidth(const Topology& topology, absl::Duration time,
                                                   int64_t memory_bytes);

}  // namespace atelier
