#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/fp8_layout-inl.h"

// What the AVX-512 FP8 kernels share. In an anonymous namespace, as panel_loop-inl.h.

namespace atelier {
namespace {

// 2^(e - 127): e in the exponent field; 0 is subnormal, 255 is NaN.
inline __m512 PowersOfTwo(const uint8_t* at) {
  const __m512i e = _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(at)));
  __m512i bits = _mm512_slli_epi32(e, 23);
  bits = _mm512_mask_mov_epi32(bits, _mm512_testn_epi32_mask(e, e), _mm512_set1_epi32(0x00400000));
  bits = _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(e, _mm512_set1_epi32(255)),
                               _mm512_set1_epi32(0x7fc00000));
  return _mm512_castsi512_ps(bits);
}

// What fp8_loop-inl.h and fp8_fp32-inl.h are written in.
struct Lanes {
  using Floats = __m512;
  static constexpr size_t kWidth = 16;
  static Floats Zero() { return _mm512_setzero_ps(); }
  static Floats Load(const float* at) { return _mm512_load_ps(at); }
  static Floats Broadcast(const float* at) { return _mm512_set1_ps(*at); }
  static void Store(float* at, Floats values) { _mm512_store_ps(at, values); }
  static Floats Add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  static Floats Multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats MultiplyAdd(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static Floats GroupScales(const uint8_t* at) { return PowersOfTwo(at); }
};

}  // namespace
}  // namespace atelier
