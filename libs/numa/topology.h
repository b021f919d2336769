#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace atelier {

struct NumaNode {
  int id = 0;
  std::vector<int> cpus;     // allowed ones, ascending
  int64_t memory_bytes = 0;  // 0 = unknown
};

// What this process may use of the machine. A plain value, so tests can invent machines.
struct Topology {
  std::vector<NumaNode> nodes;  // only those with an allowed CPU; at least one
  double cpu_quota = 0;         // CPUs by cgroup v2/v1 bandwidth limit; 0 = none
  bool numa_available = false;

  int num_cpus() const;
  std::string ToString() const;  // one line for the start-up log

  // Reads affinity, /sys/devices/system/node and the cgroup below `root` ("/" on a real machine).
  // Never fails: what cannot be read is taken as one node with all allowed CPUs.
  static Topology Detect(const std::string& root = "/");
};

}  // namespace atelier
