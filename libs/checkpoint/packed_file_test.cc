#include "libs/checkpoint/packed_file.h"

#include <sys/mount.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/checkpoint/packed_checksum.h"
#include "libs/checkpoint/packed_directory.h"
#include "libs/checkpoint/packed_file_writer.h"
#include "libs/testing/read_file.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/temp_dir.h"

namespace atelier {
namespace {

using ::atelier::testing::ReadFile;
using ::atelier::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

PackedKey Key() {
  PackedKey key;
  key.checkpoint_digest = std::string(64, 'a');
  key.layout_version = 2;
  key.methods = "INT8";
  key.hidden_size = 256;
  key.intermediate_size = 192;
  key.layer = 3;
  key.part = PackedPart::kDown;
  key.experts = {2, 7};
  key.columns = {64, 128};
  key.expert_bytes = 33 * 1024;  // so that a sample is not all of it
  return key;
}

void Replace(const std::string& path, const std::string& contents) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << contents;
}

class PackedFileTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<PackedFileWriter>> TryCreate() {
    return PackedFileWriter::TryCreate(dir_.path(), Key(), system_);
  }
  static void Fill(PackedFileWriter& writer) {
    const PackedKey key = Key();
    for (int expert = key.experts.begin; expert < key.experts.end; ++expert) {
      for (size_t i = 0; i < key.expert_bytes - 64; ++i) {
        writer.expert(expert)[i] = static_cast<uint8_t>(expert * 31 + static_cast<int>(i % 251));
      }
      writer.FinishExpert(expert);
    }
  }
  absl::Status Write() {
    absl::StatusOr<std::unique_ptr<PackedFileWriter>> writer = TryCreate();
    if (!writer.ok()) return writer.status();
    if (*writer == nullptr) return absl::UnavailableError("locked");
    Fill(**writer);
    return (*writer)->Commit();
  }
  absl::Status Open(const PackedKey& key = Key()) { return PackedFile::Open(path_, key).status(); }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
      names.push_back(entry.path().filename());
    }
    return names;
  }

  testing::TempDir dir_;
  PackedFileSystem system_ = PackedFileSystem::Real();
  const std::string path_ = dir_.File(Key().FileName());
};

TEST(PackedChecksum, IsXxh64) {
  const auto of = [](absl::string_view text) {
    return PackedChecksum({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  };
  EXPECT_EQ(of(""), 0xEF46DB3751D8E999u);
  EXPECT_EQ(of("a"), 0xD24EC4F1A98C6E5Bu);
  EXPECT_EQ(of("abc"), 0x44BC2CF5AD770999u);
  EXPECT_EQ(of("Nobody inspects the spammish repetition"), 0xFBCEA83C8A378BF1u);
}

TEST(PackedFileNames, SayWhatTheyHoldAndNothingElseIsOne) {
  const std::string name = Key().FileName();
  EXPECT_EQ(name, "layer-0003.down.experts-2-6.columns-64-127.pack");
  const auto parsed = ParsePackedFileName(name);
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->layer, 3);
  EXPECT_EQ(parsed->part, PackedPart::kDown);
  EXPECT_EQ(std::pair(parsed->experts.begin, parsed->experts.end), std::pair(2, 7));
  EXPECT_EQ(std::pair(parsed->columns.begin, parsed->columns.end), std::pair(64, 128));
  for (const char* other : {"", "layer-0003.down.experts-2-6.columns-64-127.pack.partial",
                            "layer-x.down.experts-2-6.columns-64-127.pack",
                            "layer-0003.up.experts-2-6.columns-64-127.pack",
                            "layer-0003.down.experts-6-2.columns-64-127.pack",
                            "layer-0003.down.experts-2.columns-64-127.pack",
                            "layer-0003.down.experts-2-6.columns-64-127"}) {
    EXPECT_FALSE(ParsePackedFileName(other).has_value()) << other;
  }
}

TEST_F(PackedFileTest, GivesBackWhatWasWritten) {
  ATELIER_ASSERT_OK(Write());
  EXPECT_THAT(Names(), ElementsAre(Key().FileName()));
  ATELIER_ASSERT_OK_AND_ASSIGN(const PackedFile file, PackedFile::Open(path_, Key()));
  for (int expert = 2; expert < 7; ++expert) {
    ASSERT_EQ(file.expert(expert).size(), Key().expert_bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(file.expert(expert).data()) % 64, 0u);
    EXPECT_EQ(file.expert(expert)[100], static_cast<uint8_t>(expert * 31 + 100));
    EXPECT_EQ(file.expert(expert)[Key().expert_bytes - 1], 0);
    ATELIER_EXPECT_OK(file.VerifyExpert(expert));
  }
  EXPECT_THAT(ReadFile(path_), HasSubstr("\ncolumns=64-127\n"));
}

TEST_F(PackedFileTest, OfAnythingElseIsRefusedNamingTheField) {
  ATELIER_ASSERT_OK(Write());
  const auto refusal = [&](void (*change)(PackedKey&)) {
    PackedKey key = Key();
    change(key);
    const absl::Status status = Open(key);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refusal([](PackedKey& k) { k.checkpoint_digest[63] = 'b'; }),
              AllOf(HasSubstr(path_), HasSubstr("checkpoint=aaa")));
  EXPECT_THAT(refusal([](PackedKey& k) { k.layout_version = 3; }),
              AllOf(HasSubstr("layout_version=2"), HasSubstr("layout_version=3")));
  EXPECT_THAT(refusal([](PackedKey& k) { k.methods = "BF16"; }), HasSubstr("methods=INT8"));
  EXPECT_THAT(refusal([](PackedKey& k) { k.hidden_size = 512; }), HasSubstr("hidden_size=256"));
  EXPECT_THAT(refusal([](PackedKey& k) { k.intermediate_size = 384; }),
              HasSubstr("intermediate_size=192"));
  EXPECT_THAT(refusal([](PackedKey& k) { k.layer = 4; }), HasSubstr("layer=3"));
  EXPECT_THAT(refusal([](PackedKey& k) { k.part = PackedPart::kGateUp; }), HasSubstr("part=down"));
  EXPECT_THAT(refusal([](PackedKey& k) { k.experts = {2, 8}; }), HasSubstr("experts=2-6"));
  EXPECT_THAT(refusal([](PackedKey& k) { k.columns = {0, 64}; }), HasSubstr("columns=64-127"));
  EXPECT_THAT(refusal([](PackedKey& k) { k.expert_bytes += 64; }), HasSubstr("expert_bytes=33792"));
}

TEST_F(PackedFileTest, AnyChangedByteOfTheHeaderIsNoticed) {
  ATELIER_ASSERT_OK(Write());
  std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
  const auto flip = [&file](size_t at) {
    file.seekg(static_cast<std::streamoff>(at));
    const auto flipped = static_cast<char>(file.get() ^ 0x40);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(flipped).flush();
  };
  for (size_t at = 0; at < Key().data_offset(); at += at < 512 || at > 4064 ? 1 : 97) {
    flip(at);
    EXPECT_FALSE(Open().ok()) << "byte " << at;
    flip(at);
  }
  ATELIER_EXPECT_OK(Open());
}

TEST_F(PackedFileTest, AShortOrLongFileIsDamaged) {
  ATELIER_ASSERT_OK(Write());
  const size_t size = Key().file_bytes();
  const std::string good = ReadFile(path_);
  for (const size_t bytes : {size_t{0}, size_t{100}, size_t{4096}, size - 1, size + 1}) {
    Replace(path_, good);
    std::filesystem::resize_file(path_, bytes);
    EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path_))) << bytes;
  }
}

TEST_F(PackedFileTest, DamagedDataIsNoticedWhereItIsRead) {
  ATELIER_ASSERT_OK(Write());
  const std::string good = ReadFile(path_);
  std::string bad = good;
  bad[Key().data_offset() + Key().expert_bytes * 3 + 3000] ^= 1;
  Replace(path_, bad);
  ATELIER_ASSERT_OK_AND_ASSIGN(const PackedFile file, PackedFile::Open(path_, Key()));
  ATELIER_EXPECT_OK(file.VerifyExpert(4));
  EXPECT_THAT(file.VerifyExpert(5), StatusIs(absl::StatusCode::kDataLoss,
                                             AllOf(HasSubstr(path_), HasSubstr("expert 5"))));
}

// A copy that was broken off: the right length, zeros from somewhere on.
TEST_F(PackedFileTest, AnUnfinishedCopyIsNoticedWhenItIsOpened) {
  ATELIER_ASSERT_OK(Write());
  std::string cut = ReadFile(path_);
  std::fill(cut.end() - 1000, cut.end(), '\0');
  Replace(path_, cut);
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("sample")));
}

TEST_F(PackedFileTest, IsMadeByOneProcessAtATime) {
  ATELIER_ASSERT_OK_AND_ASSIGN(auto first, TryCreate());
  ASSERT_NE(first, nullptr);
  ATELIER_ASSERT_OK_AND_ASSIGN(auto second, TryCreate());
  EXPECT_EQ(second, nullptr);
  first.reset();
  EXPECT_THAT(Names(), IsEmpty());
  ATELIER_ASSERT_OK_AND_ASSIGN(second, TryCreate());
  EXPECT_NE(second, nullptr);
}

TEST_F(PackedFileTest, WhatAKilledProcessLeftIsBegunAnew) {
  ATELIER_ASSERT_OK(Write());
  const std::string uninterrupted = ReadFile(path_);
  std::filesystem::remove(path_);
  Replace(PartialName(path_), std::string(3 * uninterrupted.size(), 'x'));
  ATELIER_ASSERT_OK(Write());
  EXPECT_EQ(ReadFile(path_), uninterrupted);
  EXPECT_THAT(Names(), ElementsAre(Key().FileName()));
}

TEST_F(PackedFileTest, FailuresOfTheSystemAreNamedAndLeaveNothing) {
  const PackedFileSystem real = system_;
  system_.create = [](const std::string&) { return -EROFS; };
  EXPECT_THAT(Write(), StatusIs(absl::StatusCode::kPermissionDenied,
                                AllOf(HasSubstr(path_), HasSubstr("Read-only"))));
  system_ = real;
  system_.reserve = [](int, size_t) { return ENOSPC; };
  EXPECT_THAT(Write(), StatusIs(absl::StatusCode::kResourceExhausted,
                                AllOf(HasSubstr(path_), HasSubstr("needs"), HasSubstr("free"))));
  EXPECT_THAT(Names(), IsEmpty());
  system_ = real;
  system_.flush = [](void*, size_t) { return EIO; };
  EXPECT_THAT(Write().message(), AllOf(HasSubstr("write"), HasSubstr(path_)));
  EXPECT_THAT(Names(), IsEmpty());
  system_ = real;
  system_.sync = [](int) { return EDQUOT; };
  EXPECT_THAT(Write().message(), AllOf(HasSubstr("sync"), HasSubstr(path_)));
  EXPECT_THAT(Names(), IsEmpty());
}

// Only root may mount; elsewhere the failures above stand for these.
class MountedFileTest : public PackedFileTest {
 protected:
  bool Mount(const char* type, unsigned long flags, const char* data) {
    mounted_ = ::mount("none", dir_.path().c_str(), type, flags, data) == 0;
    return mounted_;
  }
  void TearDown() override {
    if (mounted_) ::umount2(dir_.path().c_str(), MNT_DETACH);
  }

  bool mounted_ = false;
};

TEST_F(MountedFileTest, AFullDiskLeavesNothing) {
  if (!Mount("tmpfs", 0, "size=8k")) GTEST_SKIP() << "cannot mount here";
  EXPECT_THAT(Write(), StatusIs(absl::StatusCode::kResourceExhausted,
                                AllOf(HasSubstr(path_), HasSubstr("8192 are free"))));
  EXPECT_THAT(Names(), IsEmpty());
  ATELIER_ASSERT_OK_AND_ASSIGN(const FileSystemInfo info, InspectFileSystem(dir_.path()));
  EXPECT_EQ(info.medium, StoreMedium::kMemory);
}

TEST_F(MountedFileTest, AReadOnlyDiskServesWhatItHasAndTakesNothing) {
  if (!Mount("tmpfs", 0, "size=1m")) GTEST_SKIP() << "cannot mount here";
  ATELIER_ASSERT_OK(Write());
  ASSERT_EQ(::mount("none", dir_.path().c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, nullptr), 0);
  ATELIER_EXPECT_OK(Open());
  EXPECT_THAT(Write(), StatusIs(absl::StatusCode::kPermissionDenied,
                                AllOf(HasSubstr(path_), HasSubstr("Read-only"))));
}

// Files on huge pages: no write(), and lengths of whole pages.
TEST_F(MountedFileTest, HugePagesHoldFilesToo) {
  if (!Mount("hugetlbfs", 0, "pagesize=2M")) GTEST_SKIP() << "cannot mount here";
  const absl::Status written = Write();
  if (absl::IsResourceExhausted(written)) GTEST_SKIP() << "no huge page is reserved: " << written;
  ATELIER_ASSERT_OK(written);
  EXPECT_EQ(std::filesystem::file_size(path_), size_t{2} << 20);
  ATELIER_ASSERT_OK_AND_ASSIGN(const PackedFile file, PackedFile::Open(path_, Key()));
  ATELIER_EXPECT_OK(file.VerifyExpert(6));
}

}  // namespace
}  // namespace atelier
