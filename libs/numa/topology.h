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
  std::vector<NumaNode> nodes;  // only those with an allowed CPU; at least one; ascending id
  double cpu_quota = 0;         // CPUs by cgroup v2/v1 bandwidth limit; 0 = none
  bool numa_available = false;  // the nodes come from the system, so memory can be bound to them
  int num_system_nodes = 1;     // also those without a CPU, or without one for this process

  int num_cpus() const;
  std::vector<int> AllCpus() const;        // of all nodes, ascending
  const NumaNode* FindNode(int id) const;  // null when there is none
  std::string ToString() const;            // one line for the start-up log

  // Reads affinity, /sys/devices/system/node and the cgroup below `root` ("/" on a real machine).
  // Never fails: what cannot be read is taken as one node with all allowed CPUs.
  static Topology Detect(const std::string& root = "/");
  // The same for a process that may run on `allowed_cpus` (ascending, not empty).
  static Topology DetectFor(const std::string& root, const std::vector<int>& allowed_cpus);
};

// CPUs in the calling thread's affinity mask, ascending.
std::vector<int> AllowedCpus();

// Bytes that can be allocated before the kernel swaps or kills: the least of what the machine has
// available, what the cgroup still allows, and (numa_node >= 0) what is free on that node. Page
// cache counts as available. A file that cannot be read limits nothing.
int64_t AvailableMemoryBytes(int numa_node = -1, const std::string& root = "/");

}  // namespace atelier
