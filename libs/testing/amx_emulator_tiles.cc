#include "libs/testing/amx_emulator_tiles.h"

#include <bit>
#include <cstring>
#include <initializer_list>

namespace atelier::testing {
namespace {

constexpr AmxFault kFine{};
constexpr AmxFault Undefined(const char* reason) { return {AmxFault::kUndefined, reason}; }
constexpr AmxFault Protection(const char* reason) { return {AmxFault::kGeneralProtection, reason}; }

// Offsets in the 64 bytes that LDTILECFG reads.
constexpr size_t kPaletteAt = 0;
constexpr size_t kStartRowAt = 1;
constexpr size_t kColsbAt = 16;
constexpr size_t kRowsAt = 48;

bool AllZero(const uint8_t* bytes, size_t begin, size_t end) {
  uint8_t any = 0;
  for (size_t i = begin; i < end; ++i) any = static_cast<uint8_t>(any | bytes[i]);
  return any == 0;
}

template <typename T>
T LoadAs(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

// Sums and products of fp32 values in double, then rounded to fp32, are the same as rounded once:
// double has more than twice fp32's digits (Figueroa), and a product of two bf16 or fp16 values is
// exact. The handler runs with the default MXCSR, so doubles round to nearest even.
float RoundAndFlush(double exact) {
  // Half a step of 24 digits below 2^-126: what is smaller rounds to less than the smallest normal.
  constexpr double kFlushBelow = 0x1p-126 - 0x1p-151;
  const double magnitude = exact < 0 ? -exact : exact;
  if (magnitude < kFlushBelow) return std::bit_cast<uint64_t>(exact) >> 63 ? -0.0f : 0.0f;
  return static_cast<float>(exact);
}

float FlushInput(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const bool subnormal = (bits & 0x7f800000u) == 0;
  return subnormal ? std::bit_cast<float>(bits & 0x80000000u) : value;
}

float AddFlushed(float a, float b) {
  return RoundAndFlush(double{FlushInput(a)} + double{FlushInput(b)});
}

float FromBf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

float FromFp16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t fraction = half & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  const uint32_t wide = exponent == 0x1f ? 0xffu : exponent + 112;
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

struct Bf16Element {
  static double Value(const uint8_t* at) { return FlushInput(FromBf16(LoadAs<uint16_t>(at))); }
};
struct Fp16Element {
  static double Value(const uint8_t* at) { return FromFp16(LoadAs<uint16_t>(at)); }
};

template <bool kSigned>
int32_t Byte(uint8_t byte) {
  return kSigned ? static_cast<int8_t>(byte) : byte;
}

}  // namespace

AmxFault AmxState::LoadConfig(const uint8_t* memory) {
  uint8_t config[kConfigBytes];
  std::memcpy(config, memory, sizeof(config));
  if (config[kPaletteAt] == 0) {
    Release();
    return kFine;
  }
  if (config[kPaletteAt] != 1) return Protection("the palette is neither 0 nor 1");
  if (!AllZero(config, 2, kColsbAt) || !AllZero(config, kColsbAt + 2 * kNumTiles, kRowsAt) ||
      !AllZero(config, kRowsAt + kNumTiles, kConfigBytes)) {
    return Protection("a reserved byte of the configuration is not zero");
  }
  uint16_t row_bytes[kNumTiles];
  std::memcpy(row_bytes, config + kColsbAt, sizeof(row_bytes));
  for (size_t tile = 0; tile < kNumTiles; ++tile) {
    const uint8_t rows = config[kRowsAt + tile];
    if (row_bytes[tile] > kMaxRowBytes) return Protection("a tile has colsb above 64");
    if (rows > kMaxRows) return Protection("a tile has more than 16 rows");
    if ((rows == 0) != (row_bytes[tile] == 0)) {
      return Protection("of rows and colsb of a tile one is zero");
    }
  }
  std::memset(tiles_, 0, sizeof(tiles_));
  std::memcpy(row_bytes_, row_bytes, sizeof(row_bytes_));
  std::memcpy(rows_, config + kRowsAt, sizeof(rows_));
  start_row_ = config[kStartRowAt];
  configured_ = true;
  return kFine;
}

void AmxState::StoreConfig(uint8_t* memory) const {
  uint8_t config[kConfigBytes] = {};
  if (configured_) {
    config[kPaletteAt] = 1;
    config[kStartRowAt] = start_row_;
    std::memcpy(config + kColsbAt, row_bytes_, sizeof(row_bytes_));
    std::memcpy(config + kRowsAt, rows_, sizeof(rows_));
  }
  std::memcpy(memory, config, sizeof(config));
}

void AmxState::Release() {
  configured_ = false;
  start_row_ = 0;
  std::memset(rows_, 0, sizeof(rows_));
  std::memset(row_bytes_, 0, sizeof(row_bytes_));
  std::memset(tiles_, 0, sizeof(tiles_));
}

AmxFault AmxState::Zero(int tile) {
  if (!configured_) return Undefined("no tile configuration is loaded");
  if (!Valid(tile)) return Undefined("the tile is not configured");
  std::memset(tiles_[tile], 0, sizeof(tiles_[tile]));
  start_row_ = 0;
  return kFine;
}

AmxFault AmxState::CheckMemoryOperand(int tile) const {
  if (!configured_) return Undefined("no tile configuration is loaded");
  if (!Valid(tile)) return Undefined("the tile is not configured");
  if (row_bytes_[tile] % 4 != 0) return Undefined("the tile's colsb is not a multiple of 4");
  if (start_row_ >= rows_[tile]) return Undefined("start_row is not a row of the tile");
  return kFine;
}

AmxFault AmxState::Load(int tile, uint64_t base, uint64_t stride) {
  const AmxFault fault = CheckMemoryOperand(tile);
  if (fault.kind != AmxFault::kNone) return fault;
  for (int row = start_row_; row < kMaxRows; ++row) {
    std::memset(tiles_[tile][row], 0, kMaxRowBytes);
  }
  for (; start_row_ < rows_[tile]; ++start_row_) {
    const auto* from = reinterpret_cast<const uint8_t*>(base + start_row_ * stride);
    std::memcpy(tiles_[tile][start_row_], from, row_bytes_[tile]);
  }
  start_row_ = 0;
  return kFine;
}

AmxFault AmxState::Store(int tile, uint64_t base, uint64_t stride) {
  const AmxFault fault = CheckMemoryOperand(tile);
  if (fault.kind != AmxFault::kNone) return fault;
  for (; start_row_ < rows_[tile]; ++start_row_) {
    auto* to = reinterpret_cast<uint8_t*>(base + start_row_ * stride);
    std::memcpy(to, tiles_[tile][start_row_], row_bytes_[tile]);
  }
  start_row_ = 0;
  return kFine;
}

AmxFault AmxState::CheckDot(int dest, int a, int b) const {
  if (dest == a || a == b || dest == b) return Undefined("two of the three tiles are the same");
  if (!configured_) return Undefined("no tile configuration is loaded");
  for (int tile : {dest, a, b}) {
    if (!Valid(tile)) return Undefined("a tile is not configured");
    if (row_bytes_[tile] % 4 != 0) return Undefined("a tile's colsb is not a multiple of 4");
  }
  if (rows_[dest] != rows_[a]) return Undefined("the destination's rows are not those of A");
  if (row_bytes_[dest] != row_bytes_[b]) return Undefined("the destination's colsb is not B's");
  if (row_bytes_[a] / 4 != rows_[b]) return Undefined("A's colsb / 4 is not the rows of B");
  return kFine;
}

AmxFault AmxState::Dot(AmxOperation operation, int dest, int a, int b) {
  const AmxFault fault = CheckDot(dest, a, b);
  if (fault.kind != AmxFault::kNone) return fault;
  switch (operation) {
    case AmxOperation::kDotSignedSigned:
      DotInt<true, true>(dest, a, b);
      break;
    case AmxOperation::kDotSignedUnsigned:
      DotInt<true, false>(dest, a, b);
      break;
    case AmxOperation::kDotUnsignedSigned:
      DotInt<false, true>(dest, a, b);
      break;
    case AmxOperation::kDotUnsignedUnsigned:
      DotInt<false, false>(dest, a, b);
      break;
    case AmxOperation::kDotBf16:
      DotFloat(dest, a, b, Bf16Element{});
      break;
    case AmxOperation::kDotFp16:
      DotFloat(dest, a, b, Fp16Element{});
      break;
    default:
      return Undefined("not a product of tiles");
  }
  FinishTile(dest);
  return kFine;
}

template <bool kSignedA, bool kSignedB>
void AmxState::DotInt(int dest, int a, int b) {
  const int groups = row_bytes_[a] / 4;
  const int columns = row_bytes_[dest] / 4;
  for (int row = 0; row < rows_[dest]; ++row) {
    uint32_t sums[kMaxRowBytes / 4];
    std::memcpy(sums, tiles_[dest][row], sizeof(sums));
    for (int group = 0; group < groups; ++group) {
      const uint8_t* left = tiles_[a][row] + group * 4;
      const uint8_t* right = tiles_[b][group];
      for (int column = 0; column < columns; ++column, right += 4) {
        int32_t sum = 0;
        for (int i = 0; i < 4; ++i) sum += Byte<kSignedA>(left[i]) * Byte<kSignedB>(right[i]);
        sums[column] += static_cast<uint32_t>(sum);
      }
    }
    std::memcpy(tiles_[dest][row], sums, sizeof(sums));
    FinishRow(dest, row);
  }
}

template <typename Element>
void AmxState::DotFloat(int dest, int a, int b, Element) {
  const int groups = row_bytes_[a] / 4;
  const int columns = row_bytes_[dest] / 4;
  for (int row = 0; row < rows_[dest]; ++row) {
    float sums[kMaxRowBytes / 4][2] = {};
    for (int group = 0; group < groups; ++group) {
      const uint8_t* left = tiles_[a][row] + group * 4;
      const double even = Element::Value(left), odd = Element::Value(left + 2);
      const uint8_t* right = tiles_[b][group];
      for (int column = 0; column < columns; ++column, right += 4) {
        float* sum = sums[column];
        sum[0] = RoundAndFlush(even * Element::Value(right) + double{sum[0]});
        sum[1] = RoundAndFlush(odd * Element::Value(right + 2) + double{sum[1]});
      }
    }
    for (int column = 0; column < columns; ++column) {
      uint8_t* at = tiles_[dest][row] + column * 4;
      const float sum = AddFlushed(LoadAs<float>(at), AddFlushed(sums[column][0], sums[column][1]));
      std::memcpy(at, &sum, sizeof(sum));
    }
    FinishRow(dest, row);
  }
}

void AmxState::FinishRow(int tile, int row) {
  const size_t bytes = row_bytes_[tile];
  std::memset(tiles_[tile][row] + bytes, 0, kMaxRowBytes - bytes);
}

void AmxState::FinishTile(int tile) {
  for (int row = rows_[tile]; row < kMaxRows; ++row) {
    std::memset(tiles_[tile][row], 0, kMaxRowBytes);
  }
  start_row_ = 0;
}

}  // namespace atelier::testing
