#pragma once

#include <concepts>
#include <optional>

namespace atelier {

// Sums and products of lengths that come from a file or a peer: nullopt when the result does not
// fit T.

template <std::integral T>
[[nodiscard]] constexpr std::optional<T> CheckedAdd(T a, T b) {
  T result{};
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

template <std::integral T>
[[nodiscard]] constexpr std::optional<T> CheckedMul(T a, T b) {
  T result{};
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

template <std::integral T>
[[nodiscard]] constexpr T CeilDiv(T a, T b) {
  return static_cast<T>((a + b - 1) / b);
}

template <std::integral T>
[[nodiscard]] constexpr T RoundUp(T a, T multiple) {
  return static_cast<T>(CeilDiv(a, multiple) * multiple);
}

}  // namespace atelier
