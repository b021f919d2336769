#pragma once

#include <cstdint>

// In an anonymous namespace, as panel_loop-inl.h.

namespace atelier {
namespace {

// The value at an address that may be unaligned.
template <typename T>
inline T LoadAs(const uint8_t* at) {
  T value;
  __builtin_memcpy(&value, at, sizeof(value));
  return value;
}

}  // namespace
}  // namespace atelier
