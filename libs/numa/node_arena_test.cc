#include "libs/numa/node_arena.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/status_matchers.h"

namespace atelier {
namespace {

using ::atelier::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Topology Invented(const std::vector<std::vector<int>>& cpus_of_nodes) {
  Topology topology;
  int id = 0;
  for (const std::vector<int>& cpus : cpus_of_nodes) topology.nodes.push_back({id++, cpus, 0});
  topology.num_system_nodes = id;
  topology.numa_available = id > 1;
  return topology;
}

class NodeArenaTest : public ::testing::Test {
 protected:
  std::vector<std::string> Lines() {
    std::lock_guard<std::mutex> lock(mutex_);
    return lines_;
  }

  Logger logger_{Severity::kInfo, [this](absl::string_view line) {
                   std::lock_guard<std::mutex> lock(mutex_);
                   lines_.emplace_back(line);
                 }};

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

TEST_F(NodeArenaTest, ChoosesNodeOfLowestCpuAndAllItsCpus) {
  Topology topology = Invented({{4, 5, 6}, {0, 1}});
  ATELIER_ASSERT_OK_AND_ASSIGN(auto arena, NodeArena::Create({}, topology, logger_));
  EXPECT_EQ(arena->numa_node(), 1);
  EXPECT_EQ(arena->num_threads(), 2);
}

TEST_F(NodeArenaTest, QuotaBoundsDefaultThreadsRoundedUp) {
  Topology topology = Invented({{0, 1, 2, 3}});
  for (const auto& [quota, threads] : {std::pair{0.5, 1}, {1.5, 2}, {3.0, 3}, {1e30, 4}}) {
    topology.cpu_quota = quota;
    ATELIER_ASSERT_OK_AND_ASSIGN(auto arena, NodeArena::Create({}, topology, logger_));
    EXPECT_EQ(arena->num_threads(), threads) << quota;
  }
  topology.cpu_quota = 0.5;
  ATELIER_ASSERT_OK_AND_ASSIGN(auto asked,
                               NodeArena::Create({.num_threads = 4}, topology, logger_));
  EXPECT_EQ(asked->num_threads(), 4);
}

TEST_F(NodeArenaTest, RefusesNodesAndThreadsThatAreNotThere) {
  const Topology topology = Invented({{0, 1}, {2, 3}});
  EXPECT_THAT(NodeArena::Create({.numa_node = 2}, topology, logger_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("numa_node=2"), HasSubstr("0, 1"))));
  EXPECT_THAT(NodeArena::Create({.numa_node = -2}, topology, logger_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("numa_node=-2")));
  for (const int threads : {-1, 3}) {
    EXPECT_THAT(NodeArena::Create({.num_threads = threads}, topology, logger_),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("num_threads="), HasSubstr("2 CPUs"))));
  }
}

TEST_F(NodeArenaTest, RunsEveryIndexOnce) {
  const Topology topology = Invented({{0, 1, 2, 3}});
  ATELIER_ASSERT_OK_AND_ASSIGN(auto arena,
                               NodeArena::Create({.pin_threads = false}, topology, logger_));
  for (const int64_t count : {0, 1, 2, 3, 4, 5, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<size_t>(count));
    arena->ParallelFor(count, [&](int64_t i) { ++runs[static_cast<size_t>(i)]; });
    EXPECT_TRUE(std::all_of(runs.begin(), runs.end(), [](const auto& n) { return n == 1; }))
        << count;
  }
}

TEST_F(NodeArenaTest, UsesAllThreadsEvenMoreThanTheMachineHas) {
  const Topology topology = Invented({{0, 1, 2, 3}});
  ATELIER_ASSERT_OK_AND_ASSIGN(auto arena,
                               NodeArena::Create({.pin_threads = false}, topology, logger_));
  // Every index waits for the others: this ends only if four threads take part at once.
  std::atomic<int> arrived{0};
  arena->ParallelFor(4, [&](int64_t) {
    ++arrived;
    while (arrived < 4) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, 4);
}

TEST_F(NodeArenaTest, SeveralThreadsMayCallAtOnce) {
  const Topology topology = Invented({{0, 1}});
  ATELIER_ASSERT_OK_AND_ASSIGN(auto arena,
                               NodeArena::Create({.pin_threads = false}, topology, logger_));
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] { arena->ParallelFor(100, [&](int64_t i) { sum += i; }); });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 3 * 4950);
}

TEST_F(NodeArenaTest, PinsItsThreadsAndLeavesTheCallerAlone) {
  const std::vector<int> before = AllowedCpus();
  if (before.size() < 2) GTEST_SKIP() << "needs two CPUs";
  const Topology topology = Invented({{before[0], before[1]}});
  ATELIER_ASSERT_OK_AND_ASSIGN(auto arena, NodeArena::Create({}, topology, logger_));
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<int> arrived{0};
  arena->ParallelFor(2, [&](int64_t) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();
    if (std::this_thread::get_id() == caller) return;
    EXPECT_THAT(AllowedCpus(), ElementsAre(before[1]));
  });
  EXPECT_EQ(AllowedCpus(), before);
  EXPECT_THAT(Lines(), ElementsAre());
}

TEST_F(NodeArenaTest, BindsTheCallingThreadOnRequest) {
  const int cpu = AllowedCpus().back();
  const Topology topology = Invented({{cpu}});
  ATELIER_ASSERT_OK_AND_ASSIGN(auto pinned, NodeArena::Create({}, topology, logger_));
  std::thread([&] {
    pinned->BindCallingThread();
    EXPECT_THAT(AllowedCpus(), ElementsAre(cpu));
  }).join();
  ATELIER_ASSERT_OK_AND_ASSIGN(auto unpinned,
                               NodeArena::Create({.pin_threads = false}, topology, logger_));
  std::thread([&] {
    const std::vector<int> before = AllowedCpus();
    unpinned->BindCallingThread();
    EXPECT_EQ(AllowedCpus(), before);
  }).join();
}

TEST_F(NodeArenaTest, RefusedPinningIsLoggedOnceAndWorkGoesOn) {
  const Topology topology = Invented({{60000, 60001}});  // CPUs that no machine of ours has
  ATELIER_ASSERT_OK_AND_ASSIGN(auto arena, NodeArena::Create({}, topology, logger_));
  std::atomic<int> runs{0};
  for (int round = 0; round < 3; ++round) {
    arena->BindCallingThread();
    arena->ParallelFor(64, [&](int64_t) { ++runs; });
  }
  EXPECT_EQ(runs, 192);
  EXPECT_THAT(Lines(), ElementsAre(AllOf(HasSubstr("pinning_refused"), HasSubstr("60000"))));
}

TEST_F(NodeArenaTest, MemoryIsZeroedAlignedAndWritable) {
  ATELIER_ASSERT_OK_AND_ASSIGN(auto arena, NodeArena::Create({}, Topology::Detect(), logger_));
  for (const size_t bytes : {size_t{1}, size_t{4097}, size_t{5} << 20}) {
    ATELIER_ASSERT_OK_AND_ASSIGN(auto memory, arena->Allocate(bytes));
    ASSERT_EQ(memory->size(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % 4096, 0u);
    const uint8_t* const end = memory->data() + bytes;
    EXPECT_TRUE(std::all_of<const uint8_t*>(memory->data(), end, [](uint8_t b) { return b == 0; }));
    std::fill(memory->data(), memory->data() + bytes, uint8_t{7});
  }
}

TEST_F(NodeArenaTest, RefusesMemoryThatNobodyHas) {
  ATELIER_ASSERT_OK_AND_ASSIGN(auto arena, NodeArena::Create({}, Topology::Detect(), logger_));
  for (const size_t bytes : {size_t{1} << 60, std::numeric_limits<size_t>::max()}) {
    EXPECT_THAT(arena->Allocate(bytes),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr(std::to_string(bytes))));
  }
  EXPECT_THAT(arena->Allocate(0), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0")));
}

TEST_F(NodeArenaTest, RefusedBindingIsLoggedOnceAndMemoryIsGivenAnyway) {
  Topology topology = Invented({AllowedCpus()});
  topology.nodes[0].id = 900;  // the kernel refuses a node that is not there
  topology.num_system_nodes = 2;
  topology.numa_available = true;
  ATELIER_ASSERT_OK_AND_ASSIGN(auto arena, NodeArena::Create({}, topology, logger_));
  for (int round = 0; round < 2; ++round) {
    ATELIER_ASSERT_OK_AND_ASSIGN(auto memory, arena->Allocate(10000));
    memory->data()[9999] = 1;
  }
  EXPECT_THAT(Lines(),
              ElementsAre(AllOf(HasSubstr("memory_binding_refused"), HasSubstr("node 900"))));
}

}  // namespace
}  // namespace atelier
