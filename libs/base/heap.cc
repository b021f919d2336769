#include "libs/base/heap.h"

#include <malloc.h>

namespace atelier {
namespace {

// The most that glibc takes: larger blocks come from the kernel, one by one.
constexpr int kLargestKept = 32 << 20;
constexpr int kMostKept = 64 << 20;

}  // namespace

void KeepFreedMemory() {
  ::mallopt(M_MMAP_THRESHOLD, kLargestKept);
  ::mallopt(M_TRIM_THRESHOLD, kMostKept);
}

}  // namespace atelier
