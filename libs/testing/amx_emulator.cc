#include "libs/testing/amx_emulator.h"

#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "libs/base/check.h"
#include "libs/kernels/cpu_features.h"
#include "libs/testing/amx_emulator_decode.h"
#include "libs/testing/amx_emulator_tiles.h"

namespace atelier::testing {
namespace {

// In a program's static TLS block, so that the handler's first use of it allocates nothing.
__attribute__((tls_model("initial-exec"))) constinit thread_local AmxState thread_state{};

// A signal handler has no other way to find what it chains to. Written before the handler is
// installed and after it is removed.
struct sigaction previous_action;
bool handler_installed = false;

using Registers = greg_t[NGREG];

uint64_t GeneralRegister(const Registers& registers, int number) {
  constexpr int kOrder[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                            REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  return number == AmxInstruction::kNone ? 0 : static_cast<uint64_t>(registers[kOrder[number]]);
}

// Base and displacement. The index of a tile's memory operand is its stride and not part of this.
uint64_t BaseAddress(const AmxInstruction& instruction, const Registers& registers) {
  uint64_t address = GeneralRegister(registers, instruction.base);
  if (instruction.rip_relative) {
    address = static_cast<uint64_t>(registers[REG_RIP]) + instruction.length;
  }
  return address + static_cast<uint64_t>(instruction.displacement);
}

AmxFault Execute(const AmxInstruction& instruction, const Registers& registers, AmxState& state) {
  const uint64_t base = BaseAddress(instruction, registers);
  const uint64_t scaled_index =
      GeneralRegister(registers, instruction.index) * static_cast<uint64_t>(instruction.scale);
  switch (instruction.operation) {
    case AmxOperation::kLoadConfig:
      return state.LoadConfig(reinterpret_cast<const uint8_t*>(base + scaled_index));
    case AmxOperation::kStoreConfig:
      state.StoreConfig(reinterpret_cast<uint8_t*>(base + scaled_index));
      return {};
    case AmxOperation::kTileLoad:
      return state.Load(instruction.tile, base, scaled_index);
    case AmxOperation::kTileStore:
      return state.Store(instruction.tile, base, scaled_index);
    case AmxOperation::kTileZero:
      return state.Zero(instruction.tile);
    case AmxOperation::kTileRelease:
      state.Release();
      return {};
    default:
      return state.Dot(instruction.operation, instruction.tile, instruction.a, instruction.b);
  }
}

void Print(const char* text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
}

void PrintFault(const AmxFault& fault) {
  Print(fault.kind == AmxFault::kUndefined ? "amx emulator: #UD: " : "amx emulator: #GP: ");
  Print(fault.reason);
  Print("\n");
}

// Blocked until this handler returns, so that it is delivered with the state of the faulting
// instruction.
void RaiseSegmentationFault() {
  sigset_t segv;
  sigemptyset(&segv);
  sigaddset(&segv, SIGSEGV);
  pthread_sigmask(SIG_BLOCK, &segv, nullptr);
  siginfo_t info{};
  info.si_signo = SIGSEGV;
  info.si_code = SI_KERNEL;
  ::syscall(SYS_rt_tgsigqueueinfo, ::getpid(), ::syscall(SYS_gettid), SIGSEGV, &info);
}

void Chain(int signal, siginfo_t* info, void* context) {
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) {
    previous_action.sa_sigaction(signal, info, context);
  } else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    previous_action.sa_handler(signal);
  } else {
    // The instruction is executed again, and then ends the process.
    ::signal(signal, SIG_DFL);
  }
}

// Executes the instruction and all AMX ones that directly follow it, for none of which the CPU then
// traps: a trap costs microseconds, more than what it emulates. Stops before one that faults.
AmxFault ExecuteRun(AmxInstruction instruction, Registers& registers) {
  do {
    const AmxFault fault = Execute(instruction, registers, thread_state);
    if (fault.kind != AmxFault::kNone) return fault;
    registers[REG_RIP] += static_cast<greg_t>(instruction.length);
  } while (DecodeAmx(reinterpret_cast<const uint8_t*>(registers[REG_RIP]), &instruction));
  return {};
}

void HandleIllegalInstruction(int signal, siginfo_t* info, void* context) {
  Registers& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  AmxInstruction instruction;
  if (!DecodeAmx(reinterpret_cast<const uint8_t*>(registers[REG_RIP]), &instruction)) {
    Chain(signal, info, context);
    return;
  }
  const AmxFault fault = ExecuteRun(instruction, registers);
  if (fault.kind == AmxFault::kNone) return;
  PrintFault(fault);
  if (fault.kind == AmxFault::kGeneralProtection) {
    RaiseSegmentationFault();
  } else {
    Chain(signal, info, context);
  }
}

}  // namespace

bool AmxEmulator::IsNative() {
  static const bool native = CpuFeatures::Detect().amx_tile;
  return native;
}

AmxEmulator::AmxEmulator() {
  if (IsNative()) return;
  ATELIER_CHECK(!handler_installed);
  ATELIER_CHECK(::sigaction(SIGILL, nullptr, &previous_action) == 0);
  struct sigaction action {};
  action.sa_sigaction = HandleIllegalInstruction;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  ATELIER_CHECK(::sigaction(SIGILL, &action, nullptr) == 0);
  installed_ = handler_installed = true;
}

AmxEmulator::~AmxEmulator() {
  if (!installed_) return;
  ATELIER_CHECK(::sigaction(SIGILL, &previous_action, nullptr) == 0);
  handler_installed = false;
}

}  // namespace atelier::testing
