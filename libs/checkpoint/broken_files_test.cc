#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/base/check.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/testing/synthetic_checkpoint.h"
#include "libs/testing/synthetic_gguf.h"
#include "libs/testing/temp_dir.h"

// What people's disks hold after a download that broke off, a wrong tool or an attack, at sizes
// where reading what the file claims would take minutes and gigabytes. Each is refused in a process
// of its own, which is ended after kMaxSeconds of computing (others may keep the CPUs busy) and
// whose memory is counted, mapped pages included. Sanitizers need more of both.

namespace atelier {
namespace {

namespace fs = std::filesystem;

using ::atelier::testing::GgufWriter;
using ::testing::HasSubstr;

#if defined(__SANITIZE_ADDRESS__)
constexpr rlim_t kMaxSeconds = 30;
constexpr int64_t kMaxKib = 2048 << 10;
#else
constexpr rlim_t kMaxSeconds = 5;
constexpr int64_t kMaxKib = 200 << 10;
#endif
constexpr uint64_t kHuge = uint64_t{64} << 30;  // of files that are holes

struct Refusal {
  std::string message;  // empty: it was not refused, or did not end
  int64_t peak_kib = 0;
};

// The child's pipe carries the message.
Refusal OpenInChild(const std::string& path) {
  int ends[2];
  ATELIER_CHECK(::pipe(ends) == 0);
  const pid_t child = ::fork();
  ATELIER_CHECK(child >= 0);
  if (child == 0) {
    const rlimit limit = {kMaxSeconds, kMaxSeconds};
    ATELIER_CHECK(::setrlimit(RLIMIT_CPU, &limit) == 0);
    absl::StatusOr<std::unique_ptr<Checkpoint>> opened = Checkpoint::Open(path);
    absl::Status status = opened.status();
    if (status.ok()) status = VerifyTensors(**opened, Role::kAll);
    const std::string text = status.ok() ? "" : status.ToString();
    (void)!::write(ends[1], text.data(), text.size());
    std::_Exit(0);
  }
  ::close(ends[1]);
  Refusal refusal;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::read(ends[0], buffer, sizeof(buffer))) > 0;) {
    refusal.message.append(buffer, static_cast<size_t>(n));
  }
  ::close(ends[0]);
  rusage usage = {};
  ATELIER_CHECK(::wait4(child, nullptr, 0, &usage) == child);
  refusal.peak_kib = usage.ru_maxrss;
  return refusal;
}

std::string U64(uint64_t value) { return {reinterpret_cast<const char*>(&value), sizeof(value)}; }
std::string U32(uint32_t value) { return {reinterpret_cast<const char*>(&value), sizeof(value)}; }

// `text`, then a hole.
void WriteSparse(const std::string& path, const std::string& text, uint64_t bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
  fs::resize_file(path, bytes);
}

// A folder with a small model in three files, and one with its GGUF in three.
class Folder {
 public:
  Folder() {
    testing::WriteSyntheticCheckpoint(
        dir_.File("hf"), {.config_json = testing::TinyQwen3MoeConfig(), .num_files = 3});
    const auto checkpoint = Checkpoint::Open(dir_.File("hf")).value();
    gguf = testing::GgufOf(*checkpoint, [](absl::string_view) { return "BF16"; });
  }
  std::string File(const std::string& name) const { return dir_.File(name); }
  std::string Shard(int i) const {
    return File(absl::StrCat("hf/model-0000", i, "-of-00003.safetensors"));
  }
  std::string Part(int i) const { return File(absl::StrCat("m-0000", i, "-of-00003.gguf")); }

  GgufWriter gguf;

 private:
  testing::TempDir dir_;
};

struct Case {
  const char* name;
  std::function<std::string(Folder&)> make;  // returns the path to open
  std::vector<std::string> parts;            // of the message
};

// A safetensors file with this header, as the second shard.
std::string WithHeader(Folder& folder, const std::string& header, uint64_t bytes) {
  WriteSparse(folder.Shard(2), U64(header.size()) + header, bytes);
  return folder.File("hf");
}

std::string WithGguf(Folder& folder, const GgufWriter& writer, uint64_t bytes) {
  WriteSparse(folder.File("m.gguf"), writer.Bytes(), bytes);
  return folder.File("m.gguf");
}

const Case kCases[] = {
    {"missingShard",
     [](Folder& f) {
       fs::remove(f.Shard(2));
       return f.File("hf");
     },
     {"model-00002-of-00003.safetensors", "missing"}},
    {"shardOneByteShort",
     [](Folder& f) {
       fs::resize_file(f.Shard(2), fs::file_size(f.Shard(2)) - 1);
       return f.File("hf");
     },
     {"DATA_LOSS", "model-00002-of-00003.safetensors"}},
    {"indexNamesTheWrongShard",
     [](Folder& f) {
       fs::rename(f.Shard(1), f.File("x"));
       fs::rename(f.Shard(2), f.Shard(1));
       fs::rename(f.File("x"), f.Shard(2));
       return f.File("hf");
     },
     {"model.safetensors.index.json says"}},
    {"headerOf2To63",
     [](Folder& f) {
       WriteSparse(f.Shard(2), U64(uint64_t{1} << 63), kHuge);
       return f.File("hf");
     },
     {"model-00002-of-00003.safetensors", "9223372036854775808"}},
    {"headerOfHoles",
     [](Folder& f) {
       WriteSparse(f.Shard(2), U64(99'999'999), kHuge);
       return f.File("hf");
     },
     {"model-00002-of-00003.safetensors"}},
    {"tensorPastTheEnd",
     [](Folder& f) {
       return WithHeader(
           f, R"({"a":{"dtype":"BF16","shape":[549755813888],"data_offsets":[0,1099511627776]}})",
           kHuge);
     },
     {"DATA_LOSS", "\"a\"", "1099511627776"}},
    {"overlappingTensors",
     [](Folder& f) {
       return WithHeader(f,
                         R"({"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]},)"
                         R"("b":{"dtype":"U8","shape":[9],"data_offsets":[8,17]}})",
                         kHuge);
     },
     {"\"b\""}},
    {"ggufOfHugeCounts",
     [](Folder& f) {
       WriteSparse(f.File("m.gguf"), "GGUF" + U32(3) + U64(uint64_t{1} << 62) + U64(1), kHuge);
       return f.File("m.gguf");
     },
     {"m.gguf", "4611686018427387904 tensors"}},
    {"ggufListOfHoles",
     [](Folder& f) {
       GgufWriter writer;
       writer.AddRaw("texts", 9, U32(8) + U64(uint64_t{1} << 60));
       return WithGguf(f, writer, kHuge);
     },
     {"m.gguf", "\"texts\"", "at most 100000000 bytes"}},
    {"ggufTextOfHoles",
     [](Folder& f) {
       GgufWriter writer;
       writer.AddRaw("text", 8, U64(kHuge - 4096));
       return WithGguf(f, writer, kHuge);
     },
     {"m.gguf", "\"text\"", "at most 100000000 bytes"}},
    {"ggufTensorPastTheEnd",
     [](Folder& f) {
       f.gguf.tensors.back().shape[0] = int64_t{1} << 40;
       return WithGguf(f, f.gguf, kHuge);
     },
     {"m.gguf", "DATA_LOSS", "cut short"}},
    {"ggufOneByteShort",
     [](Folder& f) { return WithGguf(f, f.gguf, f.gguf.Bytes().size() - 1); },
     {"m.gguf", "DATA_LOSS", "cut short"}},
    {"ggufJoinedParts",
     [](Folder& f) { return WithGguf(f, f.gguf, kHuge); },
     {"m.gguf", "follow the last tensor"}},
    {"ggufUnknownType",
     [](Folder& f) {
       f.gguf.tensors[3].type = 137;
       return WithGguf(f, f.gguf, f.gguf.Bytes().size());
     },
     {"m.gguf", "type id 137 (a type of ik_llama.cpp)"}},
    {"ggufMissingPart",
     [](Folder& f) {
       f.gguf.WriteSplit(f.File("m"), 3);
       fs::remove(f.Part(3));
       return f.Part(1);
     },
     {"m-00003-of-00003.gguf", "part 3 of 3", "missing"}},
    {"ggufPartOfAnotherSet",
     [](Folder& f) {
       f.gguf.WriteSplit(f.File("m"), 3);
       fs::copy_file(f.Part(2), f.Part(3), fs::copy_options::overwrite_existing);
       return f.Part(1);
     },
     {"m-00003-of-00003.gguf", "another file than its name says"}},
};

class BrokenFiles : public ::testing::TestWithParam<Case> {};

TEST_P(BrokenFiles, AreRefusedSoonInLittleMemoryByName) {
  Folder folder;
  const Refusal refusal = OpenInChild(GetParam().make(folder));
  for (const std::string& part : GetParam().parts) EXPECT_THAT(refusal.message, HasSubstr(part));
  RecordProperty("peak_kib", std::to_string(refusal.peak_kib));
  EXPECT_LT(refusal.peak_kib, kMaxKib);
}

INSTANTIATE_TEST_SUITE_P(All, BrokenFiles, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace atelier
