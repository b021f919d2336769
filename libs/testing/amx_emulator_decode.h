#pragma once

#include <cstddef>
#include <cstdint>

#include "libs/testing/amx_emulator_tiles.h"

namespace atelier::testing {

// One decoded AMX instruction.
struct AmxInstruction {
  static constexpr int kNone = -1;

  AmxOperation operation = AmxOperation::kTileRelease;
  size_t length = 0;  // bytes
  // Tiles, 0 to 15: the destination (or the one stored), then A and B of a product.
  int tile = 0, a = 0, b = 0;
  // The memory operand: general registers 0 to 15 (rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 …) or
  // kNone, and whether the displacement is from the next instruction.
  int base = kNone, index = kNone;
  int scale = 1;  // 1, 2, 4 or 8
  int64_t displacement = 0;
  bool rip_relative = false;
};

// Decodes the instruction at `code`, in 64-bit mode: prefixes that mean nothing (CS, DS, ES, SS),
// then VEX.128.0F38.W0 with opcode 49, 4B, 5C or 5E. False for everything else, such as forms that
// are #UD by their encoding alone, and FS, GS and 32-bit addresses, which no compiler makes. Reads
// no byte beyond the instruction.
bool DecodeAmx(const uint8_t* code, AmxInstruction* instruction);

}  // namespace atelier::testing
