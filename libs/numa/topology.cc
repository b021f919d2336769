#include "libs/numa/topology.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "libs/numa/cgroup.h"
#include "libs/numa/system_files.h"

namespace atelier {
namespace {

constexpr char kNodeFolder[] = "/sys/devices/system/node";

std::vector<int> NodeIds(const std::string& root) {
  std::vector<int> ids;
  std::error_code ignored;
  for (const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat(root, kNodeFolder), ignored)) {
    const std::string name = entry.path().filename().string();
    absl::string_view digits = name;
    int id = 0;
    if (absl::ConsumePrefix(&digits, "node") && absl::SimpleAtoi(digits, &id) && id >= 0) {
      ids.push_back(id);
    }
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::string NodeFile(const std::string& root, int id, absl::string_view name) {
  return absl::StrCat(root, kNodeFolder, "/node", id, "/", name);
}

// nullopt when any node's CPU list is unreadable: half a truth about the nodes would leave CPUs out
// that the process may use.
std::optional<std::vector<NumaNode>> ReadNodes(const std::string& root,
                                               const std::vector<int>& allowed) {
  std::vector<NumaNode> nodes;
  for (const int id : NodeIds(root)) {
    const std::optional<std::string> text = ReadSystemFile(NodeFile(root, id, "cpulist"));
    const std::optional<std::vector<int>> cpus = text ? ParseCpuList(*text) : std::nullopt;
    if (!cpus) return std::nullopt;
    NumaNode node;
    node.id = id;
    std::set_intersection(cpus->begin(), cpus->end(), allowed.begin(), allowed.end(),
                          std::back_inserter(node.cpus));
    const std::string meminfo = ReadSystemFile(NodeFile(root, id, "meminfo")).value_or("");
    node.memory_bytes = FindCounter(meminfo, "MemTotal:").value_or(0);
    if (!node.cpus.empty()) nodes.push_back(std::move(node));
  }
  if (nodes.empty()) return std::nullopt;
  return nodes;
}

std::string RangesOf(const std::vector<int>& cpus) {
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    absl::StrAppend(&text, text.empty() ? "" : ",", cpus[i]);
    if (last > i) absl::StrAppend(&text, "-", cpus[last]);
    i = last + 1;
  }
  return text;
}

int64_t NodeAvailableBytes(const std::string& root, int id) {
  const std::string meminfo = ReadSystemFile(NodeFile(root, id, "meminfo")).value_or("");
  const std::optional<int64_t> free = FindCounter(meminfo, "MemFree:");
  if (!free) return kUnlimitedBytes;
  return *free + FindCounter(meminfo, "Active(file):").value_or(0) +
         FindCounter(meminfo, "Inactive(file):").value_or(0);
}

}  // namespace

int Topology::num_cpus() const {
  size_t count = 0;
  for (const NumaNode& node : nodes) count += node.cpus.size();
  return static_cast<int>(count);
}

std::vector<int> Topology::AllCpus() const {
  std::vector<int> cpus;
  for (const NumaNode& node : nodes) cpus.insert(cpus.end(), node.cpus.begin(), node.cpus.end());
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

const NumaNode* Topology::FindNode(int id) const {
  const auto node =
      std::find_if(nodes.begin(), nodes.end(), [&](const NumaNode& n) { return n.id == id; });
  return node == nodes.end() ? nullptr : &*node;
}

std::string Topology::ToString() const {
  std::string text = absl::StrCat("nodes=", nodes.size(), " cpus=", num_cpus());
  for (const NumaNode& node : nodes) {
    absl::StrAppend(&text, " node", node.id, "=", RangesOf(node.cpus));
    if (node.memory_bytes > 0) absl::StrAppend(&text, "/", node.memory_bytes >> 20, "MiB");
  }
  if (cpu_quota > 0) absl::StrAppend(&text, " cpu_quota=", cpu_quota);
  absl::StrAppend(&text, " system_nodes=", num_system_nodes,
                  " numa=", numa_available ? "yes" : "no");
  return text;
}

Topology Topology::Detect(const std::string& root) { return DetectFor(root, AllowedCpus()); }

Topology Topology::DetectFor(const std::string& root, const std::vector<int>& allowed_cpus) {
  Topology topology;
  topology.cpu_quota = CgroupCpuQuota(root);
  std::optional<std::vector<NumaNode>> nodes = ReadNodes(root, allowed_cpus);
  if (nodes) {
    topology.numa_available = true;
    topology.num_system_nodes = static_cast<int>(NodeIds(root).size());
    topology.nodes = *std::move(nodes);
    return topology;
  }
  const std::string meminfo = ReadSystemFile(absl::StrCat(root, "/proc/meminfo")).value_or("");
  topology.nodes = {{0, allowed_cpus, FindCounter(meminfo, "MemTotal:").value_or(0)}};
  return topology;
}

std::vector<int> AllowedCpus() {
  // The kernel refuses a mask shorter than its own with EINVAL; machines beyond 1024 CPUs exist.
  for (int max_cpus = 1024; max_cpus <= 65536; max_cpus *= 2) {
    cpu_set_t* const mask = CPU_ALLOC(static_cast<size_t>(max_cpus));
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(max_cpus));
    std::vector<int> cpus;
    if (::sched_getaffinity(0, bytes, mask) == 0) {
      for (int cpu = 0; cpu < max_cpus; ++cpu) {
        if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, mask)) cpus.push_back(cpu);
      }
    }
    CPU_FREE(mask);
    if (!cpus.empty()) return cpus;
  }
  std::vector<int> all;
  const int count = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  for (int cpu = 0; cpu < count; ++cpu) all.push_back(cpu);
  return all;
}

int64_t AvailableMemoryBytes(int numa_node, const std::string& root) {
  const std::string meminfo = ReadSystemFile(absl::StrCat(root, "/proc/meminfo")).value_or("");
  const int64_t machine = FindCounter(meminfo, "MemAvailable:").value_or(kUnlimitedBytes);
  const int64_t node = numa_node >= 0 ? NodeAvailableBytes(root, numa_node) : kUnlimitedBytes;
  return std::min({machine, node, CgroupAvailableBytes(root)});
}

}  // namespace atelier
