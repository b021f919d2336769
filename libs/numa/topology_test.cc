#include "libs/numa/topology.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/numa/cgroup.h"
#include "libs/numa/system_files.h"
#include "libs/testing/temp_dir.h"

namespace atelier {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

using Files = std::map<std::string, std::string>;  // path below the root -> content

class InventedMachine {
 public:
  explicit InventedMachine(const Files& files) {
    for (const auto& [path, content] : files) {
      const std::filesystem::path full = dir_.File(path);
      std::filesystem::create_directories(full.parent_path());
      std::ofstream(full) << content;
    }
  }
  const std::string& root() const { return dir_.path(); }

 private:
  testing::TempDir dir_;
};

std::string NodePath(int node, const std::string& file) {
  return absl::StrCat("sys/devices/system/node/node", node, "/", file);
}

std::vector<int> Range(int begin, int end) {
  std::vector<int> cpus;
  for (int cpu = begin; cpu < end; ++cpu) cpus.push_back(cpu);
  return cpus;
}

TEST(CpuList, ReadsWhatTheKernelWritesAndNothingElse) {
  EXPECT_THAT(*ParseCpuList("0-2,8,5-6\n"), ElementsAre(0, 1, 2, 5, 6, 8));
  EXPECT_THAT(*ParseCpuList("\n"), ElementsAre());
  for (const char* bad : {"a", "1-", "-1", "3-1", "1,,2", "1-2-3", "99999999999", "0-70000"}) {
    EXPECT_EQ(ParseCpuList(bad), std::nullopt) << bad;
  }
}

TEST(Topology, OneNode) {
  const InventedMachine machine(
      Files{{NodePath(0, "cpulist"), "0-3\n"},
            {NodePath(0, "meminfo"), "Node 0 MemTotal:       1024 kB\n"}});
  const Topology topology = Topology::DetectFor(machine.root(), Range(0, 4));
  ASSERT_EQ(topology.nodes.size(), 1u);
  EXPECT_THAT(topology.nodes[0].cpus, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(topology.nodes[0].memory_bytes, 1024 * 1024);
  EXPECT_TRUE(topology.numa_available);
  EXPECT_EQ(topology.num_system_nodes, 1);
  EXPECT_EQ(topology.cpu_quota, 0);
}

TEST(Topology, TwoNodesWithInterleavedCpus) {
  const InventedMachine machine(
      Files{{NodePath(0, "cpulist"), "0-1,4-5\n"}, {NodePath(1, "cpulist"), "2-3,6-7\n"}});
  const Topology topology = Topology::DetectFor(machine.root(), Range(0, 8));
  ASSERT_EQ(topology.nodes.size(), 2u);
  EXPECT_THAT(topology.nodes[1].cpus, ElementsAre(2, 3, 6, 7));
  EXPECT_EQ(topology.num_cpus(), 8);
  EXPECT_THAT(topology.AllCpus(), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(topology.ToString(), HasSubstr("node0=0-1,4-5 node1=2-3,6-7"));
}

TEST(Topology, EightNodesInNumericOrder) {
  Files files;
  for (int node = 0; node < 8; ++node) {
    const int id = node < 7 ? node : 11;  // ids may have gaps, and 11 sorts before 2 as text
    files[NodePath(id, "cpulist")] = absl::StrCat(node * 16, "-", node * 16 + 15, "\n");
  }
  const InventedMachine machine(files);
  const Topology topology = Topology::DetectFor(machine.root(), Range(0, 128));
  ASSERT_EQ(topology.nodes.size(), 8u);
  EXPECT_EQ(topology.nodes[7].id, 11);
  EXPECT_EQ(topology.nodes[7].cpus.front(), 112);
  EXPECT_EQ(topology.num_cpus(), 128);
  EXPECT_EQ(topology.FindNode(11), &topology.nodes[7]);
  EXPECT_EQ(topology.FindNode(7), nullptr);
}

TEST(Topology, MemoryOnlyNodeIsNoPlaceForThreadsButCounts) {
  const InventedMachine machine(
      Files{{NodePath(0, "cpulist"), "0-3\n"}, {NodePath(1, "cpulist"), "\n"}});
  const Topology topology = Topology::DetectFor(machine.root(), Range(0, 4));
  ASSERT_EQ(topology.nodes.size(), 1u);
  EXPECT_EQ(topology.num_system_nodes, 2);
}

TEST(Topology, CpusetLeavesOutANodeAndPartOfAnother) {
  const InventedMachine machine(Files{{NodePath(0, "cpulist"), "0-3\n"},
                                      {NodePath(1, "cpulist"), "4-7\n"},
                                      {NodePath(2, "cpulist"), "8-11\n"}});
  const Topology topology = Topology::DetectFor(machine.root(), {2, 3, 8});
  ASSERT_EQ(topology.nodes.size(), 2u);
  EXPECT_THAT(topology.nodes[0].cpus, ElementsAre(2, 3));
  EXPECT_EQ(topology.nodes[1].id, 2);
  EXPECT_THAT(topology.nodes[1].cpus, ElementsAre(8));
}

TEST(Topology, OfflineCpusAreNotListedByTheNode) {
  const InventedMachine machine(Files{{NodePath(0, "cpulist"), "0,2\n"}});
  const Topology topology = Topology::DetectFor(machine.root(), {0, 1, 2, 3});
  EXPECT_THAT(topology.nodes[0].cpus, ElementsAre(0, 2));
}

TEST(Topology, MissingSysfsIsOneNodeWithAllAllowedCpus) {
  const InventedMachine machine(Files{{"proc/meminfo", "MemTotal:  2048 kB\n"}});
  const Topology topology = Topology::DetectFor(machine.root(), {1, 5});
  ASSERT_EQ(topology.nodes.size(), 1u);
  EXPECT_THAT(topology.nodes[0].cpus, ElementsAre(1, 5));
  EXPECT_EQ(topology.nodes[0].memory_bytes, 2048 * 1024);
  EXPECT_FALSE(topology.numa_available);
}

TEST(Topology, GarbageIsNotBelievedInPart) {
  for (const char* garbage : {"0-", "\x01\x02", "four", "7-4"}) {
    const InventedMachine machine(Files{{NodePath(0, "cpulist"), "0-1\n"},
                                        {NodePath(1, "cpulist"), garbage},
                                        {NodePath(1, "meminfo"), "Node 1 MemTotal: many kB\n"}});
    const Topology topology = Topology::DetectFor(machine.root(), Range(0, 4));
    ASSERT_EQ(topology.nodes.size(), 1u) << garbage;
    EXPECT_THAT(topology.nodes[0].cpus, ElementsAre(0, 1, 2, 3)) << garbage;
    EXPECT_FALSE(topology.numa_available);
  }
}

TEST(Topology, NodesThatHoldNoAllowedCpuAreNotBelieved) {
  const InventedMachine machine(Files{{NodePath(0, "cpulist"), "0-1\n"}});
  EXPECT_THAT(Topology::DetectFor(machine.root(), {6, 7}).nodes[0].cpus, ElementsAre(6, 7));
}

TEST(Topology, RealMachineHasACpu) {
  const Topology topology = Topology::Detect();
  ASSERT_FALSE(topology.nodes.empty());
  EXPECT_GE(topology.num_cpus(), 1);
  EXPECT_THAT(topology.AllCpus(), ElementsAreArray(AllowedCpus()));
}

double QuotaOf(const Files& files) {
  const InventedMachine machine(files);
  return Topology::DetectFor(machine.root(), {0}).cpu_quota;
}

TEST(CpuQuota, ReadsCgroupV2) {
  const auto with = [](const std::string& cpu_max) {
    return QuotaOf({{"proc/self/cgroup", "0::/\n"}, {"sys/fs/cgroup/cpu.max", cpu_max}});
  };
  EXPECT_EQ(with("50000 100000\n"), 0.5);
  EXPECT_EQ(with("150000 100000\n"), 1.5);
  EXPECT_EQ(with("max 100000\n"), 0);
  for (const char* garbage : {"", "50000", "50000 0", "-5 100000", "a b", "0 100000"}) {
    EXPECT_EQ(with(garbage), 0) << garbage;
  }
}

TEST(CpuQuota, IsTheTightestOfTheGroupAndItsParents) {
  EXPECT_EQ(QuotaOf({{"proc/self/cgroup", "0::/pods/one/app\n"},
                     {"sys/fs/cgroup/pods/one/app/cpu.max", "400000 100000\n"},
                     {"sys/fs/cgroup/pods/one/cpu.max", "max 100000\n"},
                     {"sys/fs/cgroup/pods/cpu.max", "250000 100000\n"}}),
            2.5);
}

TEST(CpuQuota, ReadsCgroupV1UnderEitherMountName) {
  for (const char* mount : {"cpu", "cpu,cpuacct"}) {
    const std::string base = absl::StrCat("sys/fs/cgroup/", mount, "/job/");
    EXPECT_EQ(QuotaOf({{"proc/self/cgroup", "3:memory:/m\n2:cpu,cpuacct:/job\n"},
                       {base + "cpu.cfs_quota_us", "150000\n"},
                       {base + "cpu.cfs_period_us", "100000\n"}}),
              1.5)
        << mount;
    EXPECT_EQ(QuotaOf({{"proc/self/cgroup", "2:cpu,cpuacct:/job\n"},
                       {base + "cpu.cfs_quota_us", "-1\n"},
                       {base + "cpu.cfs_period_us", "100000\n"}}),
              0);
  }
}

TEST(CpuQuota, FindsTheContainersOwnGroupMountedAsTheRoot) {
  // Without a cgroup namespace the path is the host's, which the container does not see.
  EXPECT_EQ(QuotaOf({{"proc/self/cgroup", "2:cpu:/docker/abc\n"},
                     {"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n"},
                     {"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}}),
            0.5);
  EXPECT_EQ(QuotaOf({{"proc/self/cgroup", "0::/../other\n"},
                     {"sys/fs/cgroup/cpu.max", "100000 100000\n"}}),
            1);
}

int64_t AvailableOf(const Files& files, int node = -1) {
  const InventedMachine machine(files);
  return AvailableMemoryBytes(node, machine.root());
}

TEST(AvailableMemory, IsTheLeastOfMachineGroupAndNode) {
  Files files = {{"proc/meminfo", "MemTotal: 9000 kB\nMemFree: 1 kB\nMemAvailable: 8000 kB\n"},
                 {"proc/self/cgroup", "0::/a\n"}};
  EXPECT_EQ(AvailableOf(files), 8000 * 1024);

  files["sys/fs/cgroup/a/memory.max"] = "5000000\n";
  files["sys/fs/cgroup/a/memory.current"] = "3000000\n";
  files["sys/fs/cgroup/a/memory.stat"] = "anon 1\nactive_file 400000\ninactive_file 600000\n";
  EXPECT_EQ(AvailableOf(files), 3000000);

  files[NodePath(1, "meminfo")] =
      "Node 1 MemFree: 100 kB\nNode 1 Active(file): 20 kB\nNode 1 Inactive(file): 3 kB\n";
  EXPECT_EQ(AvailableOf(files, 1), 123 * 1024);
  EXPECT_EQ(AvailableOf(files, 0), 3000000);

  files["sys/fs/cgroup/a/memory.current"] = "9000000\n";
  EXPECT_EQ(AvailableOf(files), 0);
}

TEST(AvailableMemory, ReadsCgroupV1) {
  EXPECT_EQ(AvailableOf({{"proc/self/cgroup", "4:memory:/x\n"},
                         {"sys/fs/cgroup/memory/x/memory.limit_in_bytes", "1000\n"},
                         {"sys/fs/cgroup/memory/x/memory.usage_in_bytes", "700\n"},
                         {"sys/fs/cgroup/memory/x/memory.stat",
                          "inactive_file 1\ntotal_inactive_file 200\ntotal_active_file 50\n"}}),
            550);
}

TEST(AvailableMemory, UnreadableFilesLimitNothing) {
  EXPECT_EQ(AvailableOf({}, 3), kUnlimitedBytes);
  EXPECT_EQ(AvailableOf({{"proc/self/cgroup", "0::/\n"},
                         {"sys/fs/cgroup/memory.max", "max\n"},
                         {"sys/fs/cgroup/memory.current", "5\n"}}),
            kUnlimitedBytes);
}

}  // namespace
}  // namespace atelier
