#include "libs/testing/amx_emulator_decode.h"

#include <cstring>

namespace atelier::testing {
namespace {

// The mandatory prefix, as VEX.pp encodes it.
enum Prefix { kNp = 0, k66 = 1, kF3 = 2, kF2 = 3 };

// The bits of a three-byte VEX prefix, not inverted.
struct Vex {
  int r, x, b, map, w, vvvv, l, pp;
};

Vex ReadVex(const uint8_t* at) {
  const int first = at[0], second = at[1];
  return {(~first >> 7) & 1, (~first >> 6) & 1,   (~first >> 5) & 1, first & 31,
          second >> 7,       (~second >> 3) & 15, (second >> 2) & 1, second & 3};
}

struct ModRm {
  int mod, reg, rm;
};

ModRm ReadModRm(uint8_t byte) { return {byte >> 6, (byte >> 3) & 7, byte & 7}; }

bool IsIgnoredPrefix(uint8_t byte) {
  return byte == 0x26 || byte == 0x2e || byte == 0x36 || byte == 0x3e;
}

// What follows ModRM in a memory operand; returns where it ends.
const uint8_t* ReadMemory(const uint8_t* at, const Vex& vex, const ModRm& modrm,
                          AmxInstruction* out) {
  int displacement_bytes = modrm.mod == 1 ? 1 : modrm.mod == 2 ? 4 : 0;
  out->base = modrm.rm | vex.b << 3;
  if (modrm.rm == 4) {
    const ModRm sib = ReadModRm(*at++);
    out->scale = 1 << sib.mod;
    const int index = sib.reg | vex.x << 3;
    out->index = index == 4 ? AmxInstruction::kNone : index;
    out->base = sib.rm | vex.b << 3;
    if (sib.rm == 5 && modrm.mod == 0) {
      out->base = AmxInstruction::kNone;
      displacement_bytes = 4;
    }
  } else if (modrm.rm == 5 && modrm.mod == 0) {
    out->base = AmxInstruction::kNone;
    out->rip_relative = true;
    displacement_bytes = 4;
  }
  if (displacement_bytes == 1) {
    out->displacement = static_cast<int8_t>(*at);
  } else if (displacement_bytes == 4) {
    int32_t displacement;
    std::memcpy(&displacement, at, sizeof(displacement));
    out->displacement = displacement;
  }
  return at + displacement_bytes;
}

// Opcode 49: the configuration and TILEZERO.
bool FindConfigOperation(const Vex& vex, const ModRm& modrm, AmxInstruction* out) {
  if (vex.vvvv != 0) return false;
  if (modrm.mod != 3) {
    if (modrm.reg != 0 || (vex.pp != kNp && vex.pp != k66)) return false;
    out->operation = vex.pp == kNp ? AmxOperation::kLoadConfig : AmxOperation::kStoreConfig;
    return true;
  }
  if (modrm.rm != 0) return false;
  if (vex.pp == kF2) {
    out->operation = AmxOperation::kTileZero;
    return true;
  }
  out->operation = AmxOperation::kTileRelease;
  return vex.pp == kNp && modrm.reg == 0;
}

// Opcode 4B: memory operands with a SIB byte only.
bool FindMemoryOperation(const Vex& vex, const ModRm& modrm, AmxInstruction* out) {
  if (vex.vvvv != 0 || modrm.mod == 3 || modrm.rm != 4 || vex.pp == kNp) return false;
  out->operation = vex.pp == kF3 ? AmxOperation::kTileStore : AmxOperation::kTileLoad;
  return true;
}

// Opcodes 5C and 5E: three tiles.
bool FindProduct(int opcode, const Vex& vex, const ModRm& modrm, AmxInstruction* out) {
  if (modrm.mod != 3) return false;
  if (opcode == 0x5c) {
    out->operation = vex.pp == kF3 ? AmxOperation::kDotBf16 : AmxOperation::kDotFp16;
    return vex.pp == kF3 || vex.pp == kF2;
  }
  constexpr AmxOperation kByPrefix[] = {
      AmxOperation::kDotUnsignedUnsigned, AmxOperation::kDotUnsignedSigned,
      AmxOperation::kDotSignedUnsigned, AmxOperation::kDotSignedSigned};
  out->operation = kByPrefix[vex.pp];
  return true;
}

bool FindOperation(int opcode, const Vex& vex, const ModRm& modrm, AmxInstruction* out) {
  switch (opcode) {
    case 0x49:
      return FindConfigOperation(vex, modrm, out);
    case 0x4b:
      return FindMemoryOperation(vex, modrm, out);
    case 0x5c:
    case 0x5e:
      return FindProduct(opcode, vex, modrm, out);
    default:
      return false;
  }
}

}  // namespace

bool DecodeAmx(const uint8_t* code, AmxInstruction* instruction) {
  constexpr int kLongestInstruction = 15;
  constexpr int kMap0F38 = 2;
  const uint8_t* at = code;
  while (IsIgnoredPrefix(*at)) {
    if (++at - code == kLongestInstruction) return false;
  }
  if (*at++ != 0xc4) return false;
  const Vex vex = ReadVex(at);
  if (vex.map != kMap0F38 || vex.w != 0 || vex.l != 0) return false;
  const int opcode = at[2];
  if (opcode != 0x49 && opcode != 0x4b && opcode != 0x5c && opcode != 0x5e) return false;
  const ModRm modrm = ReadModRm(at[3]);
  at += 4;
  AmxInstruction out;
  if (!FindOperation(opcode, vex, modrm, &out)) return false;
  out.tile = modrm.reg | vex.r << 3;
  if (modrm.mod == 3) {
    out.a = modrm.rm | vex.b << 3;
    out.b = vex.vvvv;
  } else {
    at = ReadMemory(at, vex, modrm, &out);
  }
  out.length = static_cast<size_t>(at - code);
  *instruction = out;
  return true;
}

}  // namespace atelier::testing
