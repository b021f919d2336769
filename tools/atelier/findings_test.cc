#include "tools/atelier/findings.h"

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/temp_dir.h"
#include "nlohmann/json.hpp"

namespace atelier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;

// A host that has nothing to mend.
MachineFacts GoodHost() {
  MachineFacts facts;
  facts.cpu_name = "Good CPU";
  facts.features.avx2_fma = true;
  facts.topology.nodes = {{0, {0, 1, 2, 3}, 64 * kGiB}, {1, {4, 5, 6, 7}, 64 * kGiB}};
  facts.topology.num_system_nodes = 2;
  facts.topology.numa_available = true;
  facts.huge_pages.transparent = "madvise";
  facts.available_memory_bytes = 100 * kGiB;
  facts.lockable_bytes = std::numeric_limits<int64_t>::max();
  facts.open_files = facts.open_files_hard = 4096;
  facts.kernel = {0, 0, 0, 65530, 60, 0, "performance"};
  return facts;
}

Finding FindingOf(const MachineFacts& facts, const std::string& topic) {
  for (const Finding& finding : Judge(facts)) {
    if (finding.topic == topic) return finding;
  }
  ADD_FAILURE() << "no finding about " << topic;
  return {};
}

TEST(Judge, FindsNothingToMendOnAGoodHost) {
  for (const Finding& finding : Judge(GoodHost())) {
    EXPECT_EQ(finding.verdict, Verdict::kOk) << finding.topic << ": " << finding.fact;
    EXPECT_EQ(finding.advice, "") << finding.topic;
    EXPECT_NE(finding.fact, "") << finding.topic;
  }
  EXPECT_THAT(FindingOf(GoodHost(), "numa").fact, HasSubstr("--shard-slice=0/2"));
}

struct Trouble {
  const char* topic;
  Verdict verdict;
  const char* advice;  // part of it
  void (*cause)(MachineFacts&);
};

TEST(Judge, SaysWhatToDoAboutEachTrouble) {
  const Trouble troubles[] = {
      {"cpu", Verdict::kWarning, "hypervisor",
       [](MachineFacts& facts) { facts.features.avx2_fma = false; }},
      {"amx", Verdict::kWarning, "ARCH_REQ_XCOMP_PERM",
       [](MachineFacts& facts) { facts.features.amx_refusal = 1; }},
      {"cpus", Verdict::kWarning, "static CPU manager",
       [](MachineFacts& facts) { facts.topology.cpu_quota = 2.5; }},
      {"numa", Verdict::kWarning, "cpuset",
       [](MachineFacts& facts) { facts.topology.nodes.pop_back(); }},
      {"pinning", Verdict::kWarning, "sched_setaffinity",
       [](MachineFacts& facts) { facts.pinning = absl::UnavailableError("refused"); }},
      {"memory policy", Verdict::kWarning, "mbind",
       [](MachineFacts& facts) { facts.memory_binding = absl::UnavailableError("refused"); }},
      {"memory", Verdict::kError, "limit",
       [](MachineFacts& facts) { facts.available_memory_bytes = 1 << 20; }},
      {"huge pages", Verdict::kWarning, "vm.nr_hugepages",
       [](MachineFacts& facts) { facts.huge_pages.transparent = "never"; }},
      {"swap", Verdict::kWarning, "swapoff",
       [](MachineFacts& facts) { facts.kernel.swap_bytes = kGiB; }},
      {"open files", Verdict::kWarning, "ulimit -n 4096",
       [](MachineFacts& facts) { facts.open_files = 1023; }},
      {"open files", Verdict::kError, "ulimit -n 4096",
       [](MachineFacts& facts) { facts.open_files = 63; }},
      {"kernel", Verdict::kWarning, "numa_balancing=0",
       [](MachineFacts& facts) { facts.kernel.numa_balancing = 1; }},
      {"kernel", Verdict::kWarning, "zone_reclaim_mode=0",
       [](MachineFacts& facts) { facts.kernel.zone_reclaim_mode = 1; }},
      {"kernel", Verdict::kWarning, "overcommit_memory=0",
       [](MachineFacts& facts) { facts.kernel.overcommit_memory = 2; }},
      {"kernel", Verdict::kWarning, "max_map_count=65530",
       [](MachineFacts& facts) { facts.kernel.max_map_count = 100; }},
      {"kernel", Verdict::kWarning, "performance",
       [](MachineFacts& facts) { facts.kernel.governor = "powersave"; }},
  };
  for (const Trouble& trouble : troubles) {
    MachineFacts facts = GoodHost();
    trouble.cause(facts);
    const std::vector<Finding> findings = Judge(facts);
    const Finding finding = FindingOf(facts, trouble.topic);
    EXPECT_EQ(finding.verdict, trouble.verdict) << finding.fact;
    EXPECT_THAT(finding.advice, HasSubstr(trouble.advice));
    EXPECT_EQ(Count(findings, Verdict::kWarning) + Count(findings, Verdict::kError), 1)
        << FindingsText(findings);
  }
}

TEST(Judge, ReservedPagesReplaceTransparentOnes) {
  MachineFacts facts = GoodHost();
  facts.huge_pages.transparent = "never";
  facts.free_huge_page_bytes = kGiB;
  EXPECT_EQ(FindingOf(facts, "huge pages").verdict, Verdict::kOk);
}

TEST(Judge, BandwidthBelowOneChannelIsAWarning) {
  EXPECT_EQ(JudgeBandwidth({50, 2}).verdict, Verdict::kOk);
  EXPECT_THAT(JudgeBandwidth({50, 2}).fact, HasSubstr("50.0 GB/s read by 2 threads"));
  EXPECT_EQ(JudgeBandwidth({3, 1}).verdict, Verdict::kWarning);
}

TEST(Findings, TextHasOneLineATopicAndTheAdviceBelow) {
  const std::vector<Finding> findings = {{"swap", Verdict::kOk, "none", ""},
                                         {"memory", Verdict::kError, "full", "free it"}};
  EXPECT_EQ(FindingsText(findings),
            "ok       swap           none\n"
            "error    memory         full\n"
            "                       → free it\n"
            "1 error, 0 warnings\n");
}

TEST(Findings, JsonSurvivesBytesThatAreNoText) {
  const std::vector<Finding> findings = {{"cpu", Verdict::kWarning, "a\xff\"b", "mend"}};
  const nlohmann::json document = nlohmann::json::parse(FindingsJson(findings));
  EXPECT_EQ(document["warnings"], 1);
  EXPECT_EQ(document["findings"][0]["verdict"], "warning");
  EXPECT_THAT(document["findings"][0]["fact"].get<std::string>(),
              AllOf(HasSubstr("a"), HasSubstr("\"b")));
}

TEST(MachineFacts, ReadsTheSystemsFiles) {
  const testing::TempDir root;
  const auto write = [&root](const std::string& path, const std::string& text) {
    const std::filesystem::path full = root.File(path);
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  };
  write("proc/sys/kernel/numa_balancing", "1\n");
  write("proc/sys/vm/swappiness", "60\n");
  write("proc/sys/vm/max_map_count", "many\n");
  write("proc/meminfo", "MemTotal: 8 kB\nSwapTotal:   2048 kB\n");
  write("proc/driver/nvidia/version", "NVRM version: 580\nGCC version: 12\n");
  write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Test CPU @ 3 GHz\n");
  write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
  const MachineFacts facts = GatherMachineFacts(root.path());
  EXPECT_EQ(facts.kernel.numa_balancing, 1);
  EXPECT_EQ(facts.kernel.swappiness, 60);
  EXPECT_EQ(facts.kernel.max_map_count, std::nullopt);
  EXPECT_EQ(facts.kernel.zone_reclaim_mode, std::nullopt);
  EXPECT_EQ(facts.kernel.swap_bytes, 2 << 20);
  EXPECT_EQ(facts.gpu_driver, "NVRM version: 580");
  EXPECT_EQ(facts.cpu_name, "Test CPU @ 3 GHz");
  EXPECT_EQ(facts.kernel.governor, "powersave");
  EXPECT_GT(facts.open_files, 0);
  EXPECT_TRUE(facts.pinning.ok()) << facts.pinning;
}

}  // namespace
}  // namespace atelier
