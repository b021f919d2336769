#include "libs/testing/amx_emulator_decode.h"

#include <vector>

#include "gtest/gtest.h"
#include "libs/testing/guarded_buffer.h"

namespace atelier::testing {
namespace {

using Bytes = std::vector<uint8_t>;

// Decodes with the last byte at the end of a page, so that reading beyond it crashes.
bool Decode(const Bytes& bytes, AmxInstruction* out) {
  const GuardedBuffer<uint8_t> code(bytes.data(), bytes.size());
  return DecodeAmx(code.data(), out);
}

AmxInstruction Decoded(const Bytes& bytes) {
  AmxInstruction out;
  EXPECT_TRUE(Decode(bytes, &out));
  EXPECT_EQ(out.length, bytes.size());
  return out;
}

TEST(DecodeAmx, TellsEveryOperationAndItsTiles) {
  struct Case {
    Bytes bytes;
    AmxOperation operation;
  };
  const Case products[] = {
      {{0xc4, 0xe2, 0x6b, 0x5e, 0xd9}, AmxOperation::kDotSignedSigned},
      {{0xc4, 0xe2, 0x6a, 0x5e, 0xd9}, AmxOperation::kDotSignedUnsigned},
      {{0xc4, 0xe2, 0x69, 0x5e, 0xd9}, AmxOperation::kDotUnsignedSigned},
      {{0xc4, 0xe2, 0x68, 0x5e, 0xd9}, AmxOperation::kDotUnsignedUnsigned},
      {{0xc4, 0xe2, 0x6a, 0x5c, 0xd9}, AmxOperation::kDotBf16},
      {{0xc4, 0xe2, 0x6b, 0x5c, 0xd9}, AmxOperation::kDotFp16},
  };
  for (const Case& c : products) {
    const AmxInstruction out = Decoded(c.bytes);
    EXPECT_EQ(out.operation, c.operation);
    EXPECT_EQ(out.tile, 3);
    EXPECT_EQ(out.a, 1);
    EXPECT_EQ(out.b, 2);
  }
  EXPECT_EQ(Decoded({0xc4, 0xe2, 0x78, 0x49, 0xc0}).operation, AmxOperation::kTileRelease);
  const AmxInstruction zero = Decoded({0xc4, 0xe2, 0x7b, 0x49, 0xe8});
  EXPECT_EQ(zero.operation, AmxOperation::kTileZero);
  EXPECT_EQ(zero.tile, 5);
  EXPECT_EQ(Decoded({0xc4, 0xe2, 0x78, 0x49, 0x00}).operation, AmxOperation::kLoadConfig);
  EXPECT_EQ(Decoded({0xc4, 0xe2, 0x79, 0x49, 0x00}).operation, AmxOperation::kStoreConfig);
  EXPECT_EQ(Decoded({0xc4, 0xe2, 0x7b, 0x4b, 0x0c, 0x18}).operation, AmxOperation::kTileLoad);
  EXPECT_EQ(Decoded({0xc4, 0xe2, 0x79, 0x4b, 0x0c, 0x18}).operation, AmxOperation::kTileLoad);
  EXPECT_EQ(Decoded({0xc4, 0xe2, 0x7a, 0x4b, 0x0c, 0x18}).operation, AmxOperation::kTileStore);
}

TEST(DecodeAmx, ReadsEveryFormOfAMemoryOperand) {
  struct Case {
    Bytes bytes;
    int base, index, scale;
    int64_t displacement;
    bool rip_relative = false;
  };
  constexpr int kNone = AmxInstruction::kNone;
  const Case cases[] = {
      {{0xc4, 0xe2, 0x7b, 0x4b, 0x0c, 0x18}, 0, 3, 1, 0},
      {{0xc4, 0xe2, 0x7b, 0x4b, 0x4c, 0x98, 0xe0}, 0, 3, 4, -32},
      {{0xc4, 0xe2, 0x7b, 0x4b, 0x8c, 0xd8, 0x78, 0x56, 0x34, 0x12}, 0, 3, 8, 0x12345678},
      {{0xc4, 0xe2, 0x7b, 0x4b, 0x0c, 0x20}, 0, kNone, 1, 0},     // no index
      {{0xc4, 0xa2, 0x7b, 0x4b, 0x0c, 0x20}, 0, 12, 1, 0},        // VEX.X: r12
      {{0xc4, 0xc2, 0x7b, 0x4b, 0x0c, 0x18}, 8, 3, 1, 0},         // VEX.B: r8
      {{0xc4, 0xc2, 0x7b, 0x4b, 0x4c, 0x1d, 0x00}, 13, 3, 1, 0},  // r13 needs a displacement
      {{0xc4, 0xe2, 0x7b, 0x4b, 0x4c, 0x1d, 0x08}, 5, 3, 1, 8},   // rbp too
      {{0xc4, 0xe2, 0x7b, 0x4b, 0x0c, 0x1c}, 4, 3, 1, 0},         // rsp
      {{0xc4, 0xe2, 0x7b, 0x4b, 0x0c, 0x1d, 1, 0, 0, 0}, kNone, 3, 1, 1},
      {{0xc4, 0xe2, 0x78, 0x49, 0x05, 0xff, 0xff, 0xff, 0xff}, kNone, kNone, 1, -1, true},
      {{0xc4, 0xc2, 0x78, 0x49, 0x45, 0x10}, 13, kNone, 1, 16},
      {{0x3e, 0xc4, 0xe2, 0x7b, 0x4b, 0x0c, 0x18}, 0, 3, 1, 0},  // a prefix without meaning
  };
  for (const Case& c : cases) {
    const AmxInstruction out = Decoded(c.bytes);
    EXPECT_EQ(out.base, c.base);
    EXPECT_EQ(out.index, c.index);
    EXPECT_EQ(out.scale, c.scale);
    EXPECT_EQ(out.displacement, c.displacement);
    EXPECT_EQ(out.rip_relative, c.rip_relative);
  }
}

TEST(DecodeAmx, KeepsTileNumbersThatDoNotExist) {
  EXPECT_EQ(Decoded({0xc4, 0x62, 0x7b, 0x49, 0xe8}).tile, 13);
  const AmxInstruction product = Decoded({0xc4, 0xc2, 0x2b, 0x5e, 0xd9});
  EXPECT_EQ(product.a, 9);
  EXPECT_EQ(product.b, 10);
}

TEST(DecodeAmx, RefusesWhatIsNotAmx) {
  const Bytes others[] = {
      {0x0f, 0x0b},                                // ud2
      {0xc5, 0xf8, 0x77},                          // vzeroupper
      {0xc4, 0xe2, 0xeb, 0x5e, 0xd9},              // VEX.W = 1
      {0xc4, 0xe2, 0x6f, 0x5e, 0xd9},              // VEX.L = 1
      {0xc4, 0xe1, 0x6b, 0x5e, 0xd9},              // another map
      {0xc4, 0xe2, 0x6b, 0x5d, 0xd9},              // another opcode
      {0xc4, 0xe2, 0x69, 0x5c, 0xd9},              // 5C without F3 or F2
      {0xc4, 0xe2, 0x6b, 0x5e, 0x19},              // a product with memory
      {0xc4, 0xe2, 0x70, 0x49, 0xc0},              // vvvv of tilerelease
      {0xc4, 0xe2, 0x78, 0x49, 0xc8},              // reg of tilerelease
      {0xc4, 0xe2, 0x7b, 0x49, 0xe9},              // rm of tilezero
      {0xc4, 0xe2, 0x78, 0x49, 0x08},              // reg of ldtilecfg
      {0xc4, 0xe2, 0x7b, 0x49, 0x00},              // ldtilecfg with F2
      {0xc4, 0xe2, 0x78, 0x4b, 0x0c, 0x18},        // 4B without a prefix
      {0xc4, 0xe2, 0x7b, 0x4b, 0x08},              // a tile load without SIB
      {0xc4, 0xe2, 0x7b, 0x4b, 0xc8},              // and with a register
      {0xc4, 0xe2, 0x73, 0x4b, 0x0c, 0x18},        // and with vvvv
      {0x67, 0xc4, 0xe2, 0x7b, 0x4b, 0x0c, 0x18},  // 32-bit address
      {0x64, 0xc4, 0xe2, 0x7b, 0x4b, 0x0c, 0x18},  // FS
  };
  for (const Bytes& bytes : others) {
    AmxInstruction out;
    EXPECT_FALSE(Decode(bytes, &out)) << ::testing::PrintToString(bytes);
  }
}

}  // namespace
}  // namespace atelier::testing
