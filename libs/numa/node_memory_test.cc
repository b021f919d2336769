#include "libs/numa/node_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/numa/huge_pages.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/temp_dir.h"

namespace atelier {
namespace {

using ::atelier::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kHugePage = 2 * kMiB;

// A machine with some reserved huge pages, whose memory is really ordinary. Records what is asked.
class NodeMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const MemorySystem real = MemorySystem::Real();
    system_.root = dir_.path();
    system_.map = [this, real](size_t bytes, int flags) -> void* {
      const bool reserved = (flags & MAP_HUGETLB) != 0;
      calls_.push_back(reserved ? "map reserved" : "map");
      if (reserved && refuse_reserved_) {
        errno = ENOMEM;
        return MAP_FAILED;
      }
      mapped_bytes_ = bytes;
      return real.map(bytes, reserved ? 0 : flags);
    };
    system_.populate = [this](void*, size_t bytes) {
      calls_.push_back("populate");
      EXPECT_EQ(bytes, mapped_bytes_);
      return refuse_populate_ ? -1 : 0;
    };
    system_.bind = [this](void*, size_t, int node) {
      calls_.push_back("bind " + std::to_string(node));
      errno = EPERM;
      return refuse_bind_ ? -1 : 0;
    };
  }

  void Write(const std::string& path, const std::string& content) {
    const std::filesystem::path full = dir_.File(path);
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << content;
  }
  void ReservePages(int count) {
    Write("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", std::to_string(count) + "\n");
  }

  absl::StatusOr<std::unique_ptr<NodeMemory>> Allocate(size_t bytes, int node = -1) {
    calls_.clear();
    return AllocateOnNode({bytes, node}, system_, [this](const absl::Status& status) {
      refusals_.emplace_back(status.message());
    });
  }

  testing::TempDir dir_;
  MemorySystem system_;
  bool refuse_reserved_ = false, refuse_populate_ = false, refuse_bind_ = false;
  size_t mapped_bytes_ = 0;
  std::vector<std::string> calls_;
  std::vector<std::string> refusals_;
};

void ExpectUsable(NodeMemory& memory, size_t bytes) {
  ASSERT_EQ(memory.size(), bytes);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % 64, 0u);
  EXPECT_EQ(memory.data()[0], 0);
  EXPECT_EQ(memory.data()[bytes - 1], 0);
  memory.data()[bytes - 1] = 1;
}

TEST_F(NodeMemoryTest, TakesReservedPagesWhereEnoughAreFree) {
  ReservePages(3);
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto memory, Allocate(5 * kMiB));
  EXPECT_THAT(calls_, ElementsAre("map reserved", "populate"));
  EXPECT_EQ(mapped_bytes_, 3 * kHugePage);
  ExpectUsable(*memory, 5 * kMiB);
}

TEST_F(NodeMemoryTest, TakesOrdinaryPagesWhereTooFewOrNoneAreReserved) {
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto without, Allocate(5 * kMiB));
  EXPECT_THAT(calls_, ElementsAre("map"));
  ExpectUsable(*without, 5 * kMiB);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(without->data()) % kHugePage, 0u);
  for (const char* garbage : {"2", "", "many", "-1"}) {
    Write("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", garbage);
    ATELIER_ASSERT_OK_AND_ASSIGN(const auto few, Allocate(5 * kMiB));
    EXPECT_THAT(calls_, ElementsAre("map")) << garbage;
  }
}

TEST_F(NodeMemoryTest, SmallBlocksDoNotWasteAReservedPage) {
  ReservePages(100);
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto memory, Allocate(kHugePage - 1));
  EXPECT_THAT(calls_, ElementsAre("map"));
  ExpectUsable(*memory, kHugePage - 1);
}

TEST_F(NodeMemoryTest, FallsBackWhenTheKernelRefusesReservedPages) {
  ReservePages(100);
  refuse_reserved_ = true;
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto memory, Allocate(5 * kMiB));
  EXPECT_THAT(calls_, ElementsAre("map reserved", "map"));
  ExpectUsable(*memory, 5 * kMiB);
}

TEST_F(NodeMemoryTest, FallsBackWhenAnotherProcessTakesThePagesFirst) {
  ReservePages(100);
  refuse_populate_ = true;
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto memory, Allocate(5 * kMiB));
  EXPECT_THAT(calls_, ElementsAre("map reserved", "populate", "map"));
  ExpectUsable(*memory, 5 * kMiB);
}

TEST_F(NodeMemoryTest, CountsTheFreePagesOfTheNodeItBindsTo) {
  ReservePages(100);
  Write("sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages", "1\n");
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto too_few, Allocate(5 * kMiB, 1));
  EXPECT_THAT(calls_, ElementsAre("map", "bind 1"));
  Write("sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages", "3\n");
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto enough, Allocate(5 * kMiB, 1));
  EXPECT_THAT(calls_, ElementsAre("map reserved", "bind 1", "populate"));
  EXPECT_TRUE(refusals_.empty());
}

TEST_F(NodeMemoryTest, RefusedBindingIsToldAndTheMemoryGiven) {
  refuse_bind_ = true;
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto memory, Allocate(kMiB, 4));
  ExpectUsable(*memory, kMiB);
  EXPECT_THAT(refusals_, ElementsAre(AllOf(HasSubstr("node 4"), HasSubstr("not permitted"))));
}

TEST_F(NodeMemoryTest, RefusesNothingAndWhatNobodyHas) {
  EXPECT_THAT(Allocate(0), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("bytes=0")));
  ReservePages(100);
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX - kMiB, size_t{1} << 62}) {
    EXPECT_THAT(Allocate(bytes),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr(std::to_string(bytes))));
  }
}

TEST_F(NodeMemoryTest, ReadsHowMuchLiesOnHugePages) {
  Write("proc/self/smaps_rollup",
        "1-2 ---p [rollup]\nRss: 9 kB\nAnonHugePages:   4096 kB\nShmemPmdMapped: 7 kB\n"
        "Shared_Hugetlb:  0 kB\nPrivate_Hugetlb:   6144 kB\n");
  Write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  const HugePageUse use = HugePageUse::Read(dir_.path());
  EXPECT_EQ(use.transparent_bytes, 4 << 20);
  EXPECT_EQ(use.reserved_bytes, 6 << 20);
  EXPECT_EQ(use.transparent, "madvise");
  const HugePageUse nothing = HugePageUse::Read(dir_.File("absent"));
  EXPECT_EQ(nothing.transparent_bytes + nothing.reserved_bytes, 0);
  EXPECT_EQ(nothing.transparent, "unknown");
}

// A file of three pages, mapped.
class PageInTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(path_) << std::string(3 * page_, 'x');
    const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    void* const data = ::mmap(nullptr, 3 * page_, PROT_READ, MAP_SHARED, fd, 0);
    ::close(fd);
    ASSERT_NE(data, MAP_FAILED);
    data_ = static_cast<uint8_t*>(data);
  }
  void TearDown() override { ::munmap(data_, 3 * page_); }

  const size_t page_ = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  testing::TempDir dir_;
  const std::string path_ = dir_.File("file");
  uint8_t* data_ = nullptr;
  std::vector<std::string> refusals_;
  const std::function<void(const absl::Status&)> refused_ = [this](const absl::Status& status) {
    refusals_.emplace_back(status.message());
  };
};

TEST_F(PageInTest, TakesAnyBytesOfAMapping) {
  ATELIER_EXPECT_OK(PageInOnNode(data_ + 100, {2 * page_, -1}, refused_));
  ATELIER_EXPECT_OK(PageInOnNode(data_ + page_, {1, -1}, refused_));
  EXPECT_THAT(refusals_, ElementsAre());
}

TEST_F(PageInTest, ANodeThatIsNotThereIsTold) {
  ATELIER_EXPECT_OK(PageInOnNode(data_, {page_, 1000}, refused_));
  EXPECT_THAT(refusals_, ElementsAre(HasSubstr("mbind to node 1000")));
}

// Older kernels, which cannot be asked, end the process there.
TEST_F(PageInTest, WhatCannotBeReadIsDataLoss) {
  std::filesystem::resize_file(path_, page_);
  ATELIER_EXPECT_OK(PageInOnNode(data_, {page_, -1}, refused_));
  EXPECT_THAT(PageInOnNode(data_ + page_, {page_, -1}, refused_),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("cannot read")));
}

TEST(HugePages, OneLineSaysWhatWasObtained) {
  std::vector<std::string> lines;
  const Logger logger(Severity::kInfo, [&](absl::string_view line) { lines.emplace_back(line); });
  LogHugePages({0, 900, "always"}, 1000, logger);
  LogHugePages({int64_t{60} << 20, int64_t{10} << 20, "never"}, int64_t{100} << 20, logger);
  LogHugePages({0, int64_t{10} << 20, "never"}, int64_t{100} << 20, logger);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_THAT(lines[0], AllOf(HasSubstr("weight_bytes=1000"), HasSubstr("transparent_bytes=900"),
                              HasSubstr("transparent=always")));
  EXPECT_THAT(lines[1], AllOf(HasSubstr("reserved_bytes=62914560"), Not(HasSubstr("advice"))));
  EXPECT_THAT(lines[2], AllOf(HasSubstr("vm.nr_hugepages"), HasSubstr("transparent=never")));
}

}  // namespace
}  // namespace atelier
