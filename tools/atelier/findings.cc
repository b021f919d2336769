#include "tools/atelier/findings.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "libs/base/flag_table.h"
#include "libs/base/version.h"
#include "libs/kernels/kernel_table.h"
#include "nlohmann/json.hpp"

namespace atelier {
namespace {

constexpr int64_t kMinMemoryBytes = int64_t{256} << 20;
constexpr int64_t kMinOpenFiles = 64;
// Every shard of a checkpoint and every connection of a client holds one.
constexpr int64_t kGoodOpenFiles = 1024;
constexpr int64_t kKernelDefaultMapCount = 65530;
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
constexpr double kLowGbPerSecond = 8;  // less than one channel of DDR4

Finding Ok(absl::string_view topic, std::string fact) {
  return {std::string(topic), Verdict::kOk, std::move(fact), ""};
}
Finding Warning(absl::string_view topic, std::string fact, std::string advice) {
  return {std::string(topic), Verdict::kWarning, std::move(fact), std::move(advice)};
}
Finding Error(absl::string_view topic, std::string fact, std::string advice) {
  return {std::string(topic), Verdict::kError, std::move(fact), std::move(advice)};
}

Finding JudgeCpu(const MachineFacts& facts) {
  constexpr absl::string_view kTopic = "cpu";
  const auto table = KernelTable::Select(facts.features, CpuIsa::kAuto);
  if (!table.ok()) return Error(kTopic, facts.cpu_name, std::string(table.status().message()));
  std::string fact =
      absl::StrCat(facts.cpu_name, "; kernels: BF16 by ", table->isa(Method::kBF16), ", INT8 by ",
                   table->isa(Method::kINT8), ", 4-bit by ", table->isa(Method::kINT4G32));
  if (!facts.features.avx2_fma) {
    return Warning(kTopic, std::move(fact),
                   "without AVX2, FMA and F16C experts are computed one number at a time; if the "
                   "CPU has them, the hypervisor hides them: pass the host's CPU model through");
  }
  return Ok(kTopic, std::move(fact));
}

Finding JudgeAmx(const CpuFeatures& features) {
  constexpr absl::string_view kTopic = "amx";
  if (features.amx_refusal != 0) {
    return Warning(kTopic, AmxRefusalText(features),
                   "allow arch_prctl(ARCH_REQ_XCOMP_PERM) in the seccomp profile");
  }
  return Ok(kTopic, features.amx_tile ? "tiles permitted" : "this CPU has none");
}

Finding JudgeCpus(const Topology& topology) {
  constexpr absl::string_view kTopic = "cpus";
  const int cpus = topology.num_cpus();
  if (topology.cpu_quota > 0 && topology.cpu_quota < cpus) {
    return Warning(
        kTopic,
        absl::StrFormat("%d, but a quota of %g by the control group", cpus, topology.cpu_quota),
        "threads are stopped when the quota is spent; give whole CPUs of their own "
        "(Kubernetes: static CPU manager, integer requests equal to limits)");
  }
  return Ok(kTopic, absl::StrCat(cpus, " for this process, no quota below that"));
}

Finding JudgeNuma(const Topology& topology) {
  constexpr absl::string_view kTopic = "numa";
  const size_t usable = topology.nodes.size();
  if (topology.num_system_nodes > static_cast<int>(usable)) {
    return Warning(kTopic,
                   absl::StrCat(usable, " of ", topology.num_system_nodes,
                                " nodes usable: ", topology.ToString()),
                   "the rest has no CPU for this process (cpuset, taskset or memory-only nodes); "
                   "start a worker for each of them where their CPUs are allowed");
  }
  if (usable == 1) return Ok(kTopic, "one node: one worker");
  return Ok(kTopic, absl::StrCat(usable, " nodes: start one worker on each, e.g. --numa-node=0 ",
                                 "--shard-slice=0/", usable, "; ", topology.ToString()));
}

Finding JudgePinning(const absl::Status& pinning) {
  constexpr absl::string_view kTopic = "pinning";
  if (pinning.ok()) return Ok(kTopic, "threads may choose their CPUs");
  return Warning(kTopic, std::string(pinning.message()),
                 "allow sched_setaffinity; workers run without, slower and less evenly");
}

Finding JudgeBinding(const MachineFacts& facts) {
  constexpr absl::string_view kTopic = "memory policy";
  if (!facts.topology.numa_available) return Ok(kTopic, "no NUMA nodes to bind memory to");
  if (facts.memory_binding.ok()) return Ok(kTopic, "memory can be bound to a node");
  return Warning(kTopic, std::string(facts.memory_binding.message()),
                 "allow mbind (capability SYS_NICE, or a seccomp profile with it): weights could "
                 "land on the wrong node");
}

Finding JudgeHugePages(const MachineFacts& facts) {
  constexpr absl::string_view kTopic = "huge pages";
  const std::string fact =
      absl::StrCat("transparent: ", facts.huge_pages.transparent,
                   "; reserved and free: ", FormatBytes(facts.free_huge_page_bytes));
  const bool transparent =
      facts.huge_pages.transparent == "always" || facts.huge_pages.transparent == "madvise";
  if (transparent || facts.free_huge_page_bytes > 0) return Ok(kTopic, fact);
  return Warning(kTopic, fact,
                 "weights are read slower from small pages: echo madvise > "
                 "/sys/kernel/mm/transparent_hugepage/enabled, or sysctl vm.nr_hugepages=N");
}

Finding JudgeMemory(const MachineFacts& facts) {
  constexpr absl::string_view kTopic = "memory";
  const std::string fact = absl::StrCat(FormatBytes(facts.available_memory_bytes),
                                        " can be allocated before the kernel swaps or kills");
  if (facts.available_memory_bytes >= kMinMemoryBytes) return Ok(kTopic, fact);
  return Error(kTopic, fact, "end other programs, or raise the control group's memory limit");
}

Finding JudgeSwap(const KernelSettings& kernel) {
  constexpr absl::string_view kTopic = "swap";
  if (kernel.swap_bytes == 0) return Ok(kTopic, "none");
  const std::string fact = absl::StrCat(FormatBytes(kernel.swap_bytes),
                                        ", vm.swappiness=", kernel.swappiness.value_or(-1));
  if (kernel.swappiness.value_or(60) <= 10) return Ok(kTopic, fact);
  return Warning(
      kTopic, fact,
      "weights that are swapped out cost seconds: sysctl vm.swappiness=1, or swapoff -a");
}

Finding JudgeLockedMemory(int64_t bytes) {
  const std::string limit = bytes == kNoLimit ? "no limit" : "limit " + FormatBytes(bytes);
  return Ok("locked memory", limit + " (workers lock none)");
}

Finding JudgeOpenFiles(const MachineFacts& facts) {
  constexpr absl::string_view kTopic = "open files";
  const std::string fact = absl::StrCat("limit ", facts.open_files);
  const std::string advice =
      absl::StrCat("ulimit -n ", std::min(facts.open_files_hard, int64_t{65536}),
                   " (systemd: LimitNOFILE): each connection and each file of a checkpoint is one");
  if (facts.open_files < kMinOpenFiles) return Error(kTopic, fact, advice);
  if (facts.open_files < kGoodOpenFiles) return Warning(kTopic, fact, advice);
  return Ok(kTopic, fact);
}

Finding JudgeGpu(const std::string& driver) {
  constexpr absl::string_view kTopic = "gpu";
  if (driver.empty()) return Ok(kTopic, "no NVIDIA driver; the frontend computes on the CPU");
  return Ok(kTopic, driver + "; the frontend of this version computes on the CPU all the same");
}

Finding JudgeKernel(const MachineFacts& facts) {
  const KernelSettings& kernel = facts.kernel;
  std::vector<std::string> wrong, advice;
  const auto note = [&](std::string what, std::string mend) {
    wrong.push_back(std::move(what));
    advice.push_back(std::move(mend));
  };
  if (facts.topology.num_system_nodes > 1 && kernel.numa_balancing.value_or(0) != 0) {
    note("kernel.numa_balancing=1 unmaps pages to watch them",
         "sysctl kernel.numa_balancing=0 (workers place their memory themselves)");
  }
  if (kernel.zone_reclaim_mode.value_or(0) != 0) {
    note("vm.zone_reclaim_mode is on", "sysctl vm.zone_reclaim_mode=0");
  }
  if (kernel.overcommit_memory.value_or(0) == 2) {
    note("vm.overcommit_memory=2 refuses what is not backed",
         "sysctl vm.overcommit_memory=0, or a vm.overcommit_ratio that holds the weights twice");
  }
  if (kernel.max_map_count.value_or(kKernelDefaultMapCount) < kKernelDefaultMapCount) {
    note(absl::StrCat("vm.max_map_count=", *kernel.max_map_count),
         absl::StrCat("sysctl vm.max_map_count=", kKernelDefaultMapCount));
  }
  if (kernel.governor == "powersave" || kernel.governor == "conservative") {
    note(absl::StrCat("CPU frequency governor ", kernel.governor),
         "cpupower frequency-set -g performance");
  }
  if (wrong.empty()) return Ok("kernel", "settings are as workers like them");
  return Warning("kernel", absl::StrJoin(wrong, "; "), absl::StrJoin(advice, "; "));
}

absl::string_view VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kWarning:
      return "warning";
    case Verdict::kError:
      return "error";
  }
  return "?";
}

}  // namespace

std::vector<Finding> Judge(const MachineFacts& facts) {
  return {JudgeCpu(facts),
          JudgeAmx(facts.features),
          JudgeCpus(facts.topology),
          JudgeNuma(facts.topology),
          JudgePinning(facts.pinning),
          JudgeBinding(facts),
          JudgeMemory(facts),
          JudgeHugePages(facts),
          JudgeSwap(facts.kernel),
          JudgeLockedMemory(facts.lockable_bytes),
          JudgeOpenFiles(facts),
          JudgeGpu(facts.gpu_driver),
          JudgeKernel(facts)};
}

Finding JudgeBandwidth(const ReadBandwidth& read) {
  constexpr absl::string_view kTopic = "bandwidth";
  const std::string fact = absl::StrFormat(
      "%.1f GB/s read by %d thread%s: decoding reads every active expert once a "
      "token",
      read.gb_per_s, read.threads, read.threads == 1 ? "" : "s");
  if (read.gb_per_s >= kLowGbPerSecond) return Ok(kTopic, fact);
  return Warning(kTopic, fact,
                 "less than one memory channel gives: is the machine busy, or half of its "
                 "channels empty?");
}

int Count(const std::vector<Finding>& findings, Verdict verdict) {
  return static_cast<int>(
      std::count_if(findings.begin(), findings.end(),
                    [verdict](const Finding& finding) { return finding.verdict == verdict; }));
}

std::string FindingsText(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    absl::StrAppendFormat(&text, "%-8s %-14s %s\n", VerdictName(finding.verdict), finding.topic,
                          finding.fact);
    if (!finding.advice.empty()) absl::StrAppendFormat(&text, "%23s→ %s\n", "", finding.advice);
  }
  const int errors = Count(findings, Verdict::kError);
  const int warnings = Count(findings, Verdict::kWarning);
  absl::StrAppendFormat(&text, "%d error%s, %d warning%s\n", errors, errors == 1 ? "" : "s",
                        warnings, warnings == 1 ? "" : "s");
  return text;
}

std::string FindingsJson(const std::vector<Finding>& findings) {
  nlohmann::json list = nlohmann::json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"topic", finding.topic},
                    {"verdict", std::string(VerdictName(finding.verdict))},
                    {"fact", finding.fact},
                    {"advice", finding.advice}});
  }
  const nlohmann::json document = {{"version", std::string(Version())},
                                   {"errors", Count(findings, Verdict::kError)},
                                   {"warnings", Count(findings, Verdict::kWarning)},
                                   {"findings", list}};
  // Names of devices are whatever firmware says, also bytes that are no UTF-8.
  return document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace atelier
