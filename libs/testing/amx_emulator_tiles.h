#pragma once

#include <cstddef>
#include <cstdint>

namespace atelier::testing {

// The AMX instructions that AmxEmulator knows.
enum class AmxOperation {
  kLoadConfig,           // LDTILECFG
  kStoreConfig,          // STTILECFG
  kTileLoad,             // TILELOADD, TILELOADDT1
  kTileStore,            // TILESTORED
  kTileZero,             // TILEZERO
  kTileRelease,          // TILERELEASE
  kDotSignedSigned,      // TDPBSSD
  kDotSignedUnsigned,    // TDPBSUD
  kDotUnsignedSigned,    // TDPBUSD
  kDotUnsignedUnsigned,  // TDPBUUD
  kDotBf16,              // TDPBF16PS
  kDotFp16,              // TDPFP16PS
};

// The exception that an instruction raises, if any; nothing has changed then.
struct AmxFault {
  enum Kind { kNone, kUndefined, kGeneralProtection };  // -, #UD, #GP(0)
  Kind kind = kNone;
  const char* reason = "";
};

// What TILECFG and TILEDATA of palette 1 hold, and the instructions on them as the operation and
// exception sections of the Intel manual (SDM volume 2, and 2.10 for the classes AMX-E1 to E6) say.
// All zero is the initial state. Nothing here allocates, locks or calls the C library beyond
// memcpy and memset: it runs in a signal handler.
class AmxState {
 public:
  static constexpr int kNumTiles = 8;
  static constexpr int kMaxRows = 16;
  static constexpr int kMaxRowBytes = 64;
  static constexpr size_t kConfigBytes = 64;

  // Tile numbers are 0 to 15, as encodings can name them; those above 7 raise #UD.
  AmxFault LoadConfig(const uint8_t* memory);
  void StoreConfig(uint8_t* memory) const;
  void Release();
  AmxFault Zero(int tile);
  // Row r is at base + r * stride (modulo 2^64). A row whose memory is inaccessible raises SIGSEGV
  // in the middle, with start_row naming the row, as on hardware: doing it again resumes there.
  AmxFault Load(int tile, uint64_t base, uint64_t stride);
  AmxFault Store(int tile, uint64_t base, uint64_t stride);
  // dest += a x b. Integers modulo 2^32. BF16 and FP16: the even and the odd elements of K each in
  // one chain of fused multiply-adds from zero, then even + odd, then dest + that, every step
  // rounded to nearest even with results below the normal range flushed to zero; subnormal bf16 and
  // fp32 inputs count as zero, subnormal fp16 ones do not. A NaN operand gives a quiet NaN (payload
  // and sign are not specified), infinity times zero and infinity minus infinity the default one.
  AmxFault Dot(AmxOperation operation, int dest, int a, int b);

 private:
  bool Valid(int tile) const { return tile < kNumTiles && rows_[tile] != 0; }
  AmxFault CheckMemoryOperand(int tile) const;
  AmxFault CheckDot(int dest, int a, int b) const;
  template <typename Element>
  void DotFloat(int dest, int a, int b, Element);
  template <bool kSignedA, bool kSignedB>
  void DotInt(int dest, int a, int b);
  void FinishRow(int tile, int row);
  void FinishTile(int tile);

  bool configured_;
  uint8_t start_row_;
  uint8_t rows_[kNumTiles];
  uint16_t row_bytes_[kNumTiles];  // colsb
  uint8_t tiles_[kNumTiles][kMaxRows][kMaxRowBytes];
};

}  // namespace atelier::testing
