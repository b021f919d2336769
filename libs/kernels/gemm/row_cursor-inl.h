#pragma once

#include <cstddef>
#include <cstdint>

// In an anonymous namespace, as panel_loop-inl.h.

namespace atelier {
namespace {

// Addresses of kRows rows out of a pointer for every fourth row and two strides: a pointer for each
// row would not fit the general registers. The compiler may not know that the pointers move by
// constants, or it makes those sixteen again.
template <size_t kRows>
class RowCursor {
 public:
  RowCursor(const uint8_t* first, size_t stride) : stride_(stride), stride3_(3 * stride) {
    for (size_t i = 0; i < kQuads; ++i) quads_[i] = first + 4 * i * stride;
  }
  const uint8_t* At(size_t row) const {
    const size_t rest = row % 4;
    return quads_[row / 4] + (rest == 3 ? stride3_ : rest * stride_);
  }
  void Advance(size_t bytes) {
#pragma GCC unroll 4
    for (size_t i = 0; i < kQuads; ++i) {
      quads_[i] += bytes;
      asm("" : "+r"(quads_[i]));
    }
  }

 private:
  static constexpr size_t kQuads = (kRows + 3) / 4;

  const uint8_t* quads_[kQuads];
  size_t stride_, stride3_;
};

}  // namespace
}  // namespace atelier
