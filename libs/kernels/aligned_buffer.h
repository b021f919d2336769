#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>

namespace atelier {

// Scratch memory of one owner: grows, never shrinks, 64-byte aligned. Not thread-safe.
template <typename T>
class AlignedBuffer {
 public:
  // At least `count` elements, content undefined; allocates only when the buffer must grow.
  T* Reserve(size_t count) {
    if (count > capacity_) {
      data_.reset();
      data_.reset(static_cast<T*>(::operator new(count * sizeof(T), kAlignment)));
      capacity_ = count;
    }
    return data_.get();
  }
  T* data() const { return data_.get(); }

 private:
  static_assert(std::is_trivial_v<T>);
  static constexpr std::align_val_t kAlignment{64};
  struct Delete {
    void operator()(T* data) const { ::operator delete(data, kAlignment); }
  };
  std::unique_ptr<T, Delete> data_;
  size_t capacity_ = 0;
};

}  // namespace atelier
