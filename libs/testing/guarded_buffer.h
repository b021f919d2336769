#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "libs/base/check.h"

namespace atelier::testing {

// `count` elements whose end is the end of a page that is followed by an inaccessible one, so that
// reading or writing past them crashes. Aligned to as large a power of two as divides the size.
// Zeroed.
template <typename T>
class GuardedBuffer {
 public:
  explicit GuardedBuffer(size_t count) : count_(count) {
    const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    const size_t usable = (count * sizeof(T) + page - 1) / page * page;
    mapped_bytes_ = usable + page;
    void* mapped =
        ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ATELIER_CHECK(mapped != MAP_FAILED);
    base_ = static_cast<uint8_t*>(mapped);
    ATELIER_CHECK(::mprotect(base_ + usable, page, PROT_NONE) == 0);
    data_ = reinterpret_cast<T*>(base_ + usable - count * sizeof(T));
  }
  GuardedBuffer(const T* from, size_t count) : GuardedBuffer(count) {
    if (count > 0) std::memcpy(data_, from, count * sizeof(T));
  }
  ~GuardedBuffer() { ::munmap(base_, mapped_bytes_); }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return count_; }
  T& operator[](size_t i) { return data_[i]; }

 private:
  size_t count_;
  size_t mapped_bytes_ = 0;
  uint8_t* base_ = nullptr;
  T* data_ = nullptr;
};

}  // namespace atelier::testing
