#include "libs/base/heap.h"

#include <sys/resource.h>

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace atelier {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kOwnAllocator = true;
#else
constexpr bool kOwnAllocator = false;
#endif

int64_t PageFaults() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

// As of a message on its way: several at once, then none.
void UseBuffers(int times) {
  constexpr size_t kBytes = size_t{4} << 20;
  for (int i = 0; i < times; ++i) {
    std::vector<std::unique_ptr<char[]>> buffers;
    for (int n = 0; n < 4; ++n) {
      buffers.emplace_back(new char[kBytes]);
      std::memset(buffers.back().get(), i, kBytes);
    }
  }
}

TEST(KeepFreedMemory, BuffersAreNotFetchedFromTheKernelAnew) {
  if (kOwnAllocator) GTEST_SKIP() << "the sanitizer has an allocator of its own";
  KeepFreedMemory();
  // Not the main arena, and not the main thread: as in a service.
  std::thread([] {
    UseBuffers(2);
    const int64_t before = PageFaults();
    UseBuffers(100);
    EXPECT_LT(PageFaults() - before, 1000);  // of 400 buffers of 1024 pages
  }).join();
}

}  // namespace
}  // namespace atelier
