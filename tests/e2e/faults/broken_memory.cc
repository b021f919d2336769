#include "tests/e2e/faults/broken_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <random>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "libs/base/status_macros.h"
#include "libs/transport/shm_layout.h"

namespace atelier::faults {
namespace {

constexpr uint64_t kFourNans = 0x7fc07fc07fc07fc0;  // bf16
// What workers serve by default.
constexpr uint32_t kSlots = 16;

// Shows `use` the file, mapped for reading and writing.
absl::Status WithMapped(const std::string& path,
                        const std::function<void(absl::Span<uint64_t>)>& use) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  const absl::Cleanup close_fd = [fd] { ::close(fd); };
  struct stat info {};
  if (::fstat(fd, &info) != 0) return absl::ErrnoToStatus(errno, path);
  const auto bytes = static_cast<size_t>(info.st_size);
  void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return absl::ErrnoToStatus(errno, absl::StrCat("cannot map ", path));
  use({static_cast<uint64_t*>(data), bytes / sizeof(uint64_t)});
  ::munmap(data, bytes);
  return absl::OkStatus();
}

// Whole words, so that nobody reads half a number.
void Store(uint64_t& word, uint64_t value) { __atomic_store_n(&word, value, __ATOMIC_RELAXED); }

absl::Span<uint64_t> SecondHalf(absl::Span<uint64_t> words) {
  return words.subspan(words.size() / 2);
}

std::vector<std::string> SharedMemoryOf(pid_t pid) {
  std::vector<std::string> paths;
  std::error_code gone;
  for (const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/fd"), gone)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.rfind("/memfd:atelier-shm", 0) == 0) paths.push_back(entry.path().string());
  }
  return paths;
}

void ScribbleOver(absl::Span<uint64_t> words, ShmSide side, std::mt19937_64& random) {
  const ShmOffsets offsets = ShmOffsetsOf({kSlots, 4096, 4096}).value();
  auto* const bytes = reinterpret_cast<uint8_t*>(words.data());
  const bool requests = side == ShmSide::kRequests;
  const uint64_t what = random() % 3;
  if (what < 2) {
    uint64_t* const notices =
        words.data() +
        (requests ? offsets.request_notices : offsets.reply_notices) / sizeof(uint64_t);
    for (uint32_t i = 0; i < kSlots; ++i) {
      const auto number = what == 0 ? static_cast<uint32_t>(notices[i] >> 32) : 0;
      Store(notices[i], MakeNotice(number, kSlots + static_cast<uint32_t>(random() % 1000000)));
    }
    return;
  }
  auto* const headers = reinterpret_cast<ShmSlotHeader*>(bytes + offsets.headers);
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    ShmSlotHeader& header = headers[slot];
    Store(requests ? header.request.epoch : header.reply.epoch, random());
    Store(requests ? header.request.sequence : header.reply.sequence, random());
  }
}

}  // namespace

absl::StatusOr<PoisonedWeights> PoisonedWeights::Poison(const std::string& store_dir) {
  PoisonedWeights poisoned;
  std::error_code gone;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(store_dir, gone)) {
    if (entry.path().extension() != ".pack") continue;
    File file{entry.path().string(), {}};
    ATELIER_RETURN_IF_ERROR(WithMapped(file.path, [&](absl::Span<uint64_t> words) {
      for (uint64_t& word : SecondHalf(words)) {
        file.weights.push_back(word);
        Store(word, kFourNans);
      }
    }));
    poisoned.files_.push_back(std::move(file));
  }
  if (!poisoned.files_.empty()) return poisoned;
  return absl::NotFoundError(absl::StrCat("no packed weights below ", store_dir));
}

PoisonedWeights::~PoisonedWeights() {
  for (const File& file : files_) {
    WithMapped(file.path, [&](absl::Span<uint64_t> words) {
      const absl::Span<uint64_t> half = SecondHalf(words);
      for (size_t i = 0; i < half.size(); ++i) Store(half[i], file.weights[i]);
    }).IgnoreError();  // the file was there a moment ago
  }
}

absl::StatusOr<int> ScribbleOverCalls(pid_t pid, ShmSide side, uint64_t seed) {
  std::mt19937_64 random(seed);
  const std::vector<std::string> memories = SharedMemoryOf(pid);
  for (const std::string& path : memories) {
    ATELIER_RETURN_IF_ERROR(
        WithMapped(path, [&](absl::Span<uint64_t> words) { ScribbleOver(words, side, random); }));
  }
  return static_cast<int>(memories.size());
}

}  // namespace atelier::faults
