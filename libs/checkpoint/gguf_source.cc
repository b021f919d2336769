#include "libs/checkpoint/gguf_source.h"

#include <cstring>

#include "libs/base/check.h"

namespace atelier {
namespace {

// The blocks' fields are docs/weight-layout.md's and the comments' here: d and dmin are fp16, and e
// is an element's index within its block.

uint16_t Half(const uint8_t* at) {
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return bits;
}

uint8_t Byte(int value) { return static_cast<uint8_t>(value); }

// Elements 0…15 in the low halves of 16 bytes, 16…31 in the high ones.
uint8_t Nibble32(const uint8_t* nibbles, size_t e) {
  return Byte(e < 16 ? nibbles[e] & 15 : nibbles[e - 16] >> 4);
}

// Blocks of 32: [d] [m] [fifth bits, 4 bytes] nibbles. `j` is the block's place in `out`.
struct Nibbles32Layout {
  bool has_min;
  bool has_fifth_bit;
};

void UnpackNibbles32(const uint8_t* block, size_t j, Nibbles32Layout layout, QuantBlock& out) {
  out.half_scales[j] = Half(block);
  const uint8_t* at = block + 2;
  if (layout.has_min) {
    out.half_mins[j] = Half(at);
    at += 2;
  }
  uint32_t fifth = 0;
  if (layout.has_fifth_bit) {
    std::memcpy(&fifth, at, sizeof(fifth));
    at += sizeof(fifth);
  }
  for (size_t e = 0; e < 32; ++e) {
    out.codes[32 * j + e] = Byte(Nibble32(at, e) | static_cast<int>(fifth >> e & 1) << 4);
  }
}

// d, 32 signed bytes.
void UnpackQ8_0(const uint8_t* block, size_t j, QuantBlock& out) {
  out.half_scales[j] = Half(block);
  for (size_t e = 0; e < 32; ++e) out.codes[32 * j + e] = Byte(block[2 + e] ^ 0x80);
}

// An exponent, nibbles.
void UnpackMxFp4(const uint8_t* block, size_t j, QuantBlock& out) {
  out.exponents[j] = block[0];
  for (size_t e = 0; e < 32; ++e) out.codes[32 * j + e] = Nibble32(block + 1, e);
}

// Two bits of element e out of 64 bytes: 32 consecutive ones share a plane of bits.
int TwoBits(const uint8_t* codes, size_t e) {
  return codes[32 * (e >> 7) + (e & 31)] >> (2 * (e >> 5 & 3)) & 3;
}

// 16 x (scale, min) of 4 bits, 64 bytes of codes, d, dmin.
void UnpackQ2_K(const uint8_t* block, QuantBlock& out) {
  out.super = Half(block + 80);
  out.super_min = Half(block + 82);
  for (size_t g = 0; g < 16; ++g) {
    out.sub_scales[g] = block[g] & 15;
    out.sub_mins[g] = Byte(block[g] >> 4);
  }
  for (size_t e = 0; e < 256; ++e) out.codes[e] = Byte(TwoBits(block + 16, e));
}

// 32 bytes of third bits, 64 of codes, 16 scales of 6 bits in 12, d.
void UnpackQ3_K(const uint8_t* block, QuantBlock& out) {
  const uint8_t* const scales = block + 96;
  out.super = Half(block + 108);
  for (size_t g = 0; g < 16; ++g) {
    const int low = g < 8 ? scales[g] & 15 : scales[g - 8] >> 4;
    const int high = scales[8 + (g & 3)] >> (2 * (g >> 2)) & 3;
    out.sub_scales[g] = Byte((low | high << 4) - 32);
  }
  for (size_t e = 0; e < 256; ++e) {
    const int third = block[e & 31] >> (e >> 5) & 1;
    out.codes[e] = Byte(TwoBits(block + 32, e) | third << 2);
  }
}

// d, dmin, 8 x (scale, min) of 6 bits in 12 bytes.
void UnpackSixBitScales(const uint8_t* block, QuantBlock& out) {
  const uint8_t* const scales = block + 4;
  out.super = Half(block);
  out.super_min = Half(block + 2);
  for (size_t g = 0; g < 4; ++g) {
    out.sub_scales[g] = scales[g] & 63;
    out.sub_mins[g] = scales[g + 4] & 63;
    out.sub_scales[g + 4] = Byte((scales[g + 8] & 15) | scales[g] >> 6 << 4);
    out.sub_mins[g + 4] = Byte(scales[g + 8] >> 4 | scales[g + 4] >> 6 << 4);
  }
}

// Groups of 32 in pairs that share 32 bytes.
int PairedNibble(const uint8_t* codes, size_t e) {
  return codes[32 * (e >> 6) + (e & 31)] >> (4 * (e >> 5 & 1)) & 15;
}

void UnpackQ4_K(const uint8_t* block, QuantBlock& out) {
  UnpackSixBitScales(block, out);
  for (size_t e = 0; e < 256; ++e) out.codes[e] = Byte(PairedNibble(block + 16, e));
}

// As Q4_K, with 32 bytes of fifth bits before the nibbles.
void UnpackQ5_K(const uint8_t* block, QuantBlock& out) {
  UnpackSixBitScales(block, out);
  for (size_t e = 0; e < 256; ++e) {
    const int fifth = block[16 + (e & 31)] >> (e >> 5) & 1;
    out.codes[e] = Byte(PairedNibble(block + 48, e) | fifth << 4);
  }
}

// 128 bytes of low nibbles, 64 of the two bits above, 16 signed scales, d.
void UnpackQ6_K(const uint8_t* block, QuantBlock& out) {
  std::memcpy(out.sub_scales, block + 192, 16);
  out.super = Half(block + 208);
  for (size_t e = 0; e < 256; ++e) {
    const size_t half = e >> 7, quarter = e >> 5 & 3, lane = e & 31;
    const int low = block[64 * half + lane + 32 * (quarter & 1)] >> (4 * (quarter >> 1)) & 15;
    const int high = block[128 + 32 * half + lane] >> (2 * quarter) & 3;
    out.codes[e] = Byte(low | high << 4);
  }
}

// d, 8 scales of 6 bits (the upper two of each in a 16-bit word, then the lower four), nibbles as
// in blocks of 32.
void UnpackIq4Xs(const uint8_t* block, QuantBlock& out) {
  const int high_bits = Half(block + 2);
  out.super = Half(block);
  for (size_t g = 0; g < 8; ++g) {
    const int low = block[4 + g / 2] >> (4 * (g & 1)) & 15;
    out.sub_scales[g] = Byte((low | (high_bits >> (2 * g) & 3) << 4) - 32);
    for (size_t e = 0; e < 32; ++e) out.codes[32 * g + e] = Nibble32(block + 8 + 16 * g, e);
  }
}

// One block of the file, the `j`-th of `out`.
void Unpack(Method method, const uint8_t* block, size_t j, QuantBlock& out) {
  switch (method) {
    case Method::kQ4_0:
    case Method::kIQ4_NL:
      return UnpackNibbles32(block, j, {false, false}, out);
    case Method::kQ4_1:
      return UnpackNibbles32(block, j, {true, false}, out);
    case Method::kQ5_0:
      return UnpackNibbles32(block, j, {false, true}, out);
    case Method::kQ5_1:
      return UnpackNibbles32(block, j, {true, true}, out);
    case Method::kQ8_0:
      return UnpackQ8_0(block, j, out);
    case Method::kMXFP4:
      return UnpackMxFp4(block, j, out);
    case Method::kQ2_K:
      return UnpackQ2_K(block, out);
    case Method::kQ3_K:
      return UnpackQ3_K(block, out);
    case Method::kQ4_K:
      return UnpackQ4_K(block, out);
    case Method::kQ5_K:
      return UnpackQ5_K(block, out);
    case Method::kQ6_K:
      return UnpackQ6_K(block, out);
    case Method::kIQ4_XS:
      return UnpackIq4Xs(block, out);
    default:
      ATELIER_CHECK(false);
  }
}

}  // namespace

void GgufSource::Read(int row, int column, int count, QuantBlock& out) const {
  const size_t first = static_cast<size_t>(column) / type_.elements;
  const size_t blocks = static_cast<size_t>(count) / type_.elements;
  const uint8_t* at = data_ + static_cast<size_t>(row) * row_bytes_ + first * type_.bytes;
  for (size_t j = 0; j < blocks; ++j, at += type_.bytes) Unpack(*type_.method, at, j, out);
}

}  // namespace atelier
