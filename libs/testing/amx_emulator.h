#pragma once

namespace atelier::testing {

// Lets every thread of this process execute AMX instructions on an x86-64 CPU without them: a
// SIGILL handler decodes, executes and steps over them. While one lives; install it before threads
// use AMX and keep it until they have stopped. Each thread has its own tiles, in its initial state
// until it loads a configuration. Other SIGILLs go to the handler that was there before, and so do
// AMX instructions that raise #UD, after a line on standard error that says why. #GP becomes a
// SIGSEGV at the instruction, as the kernel delivers it.
//
// The handler allocates nothing and takes no lock; tiles are in static thread-local storage. A
// SIGILL handler installed later hides this one.
class AmxEmulator {
 public:
  // Whether this CPU and kernel execute AMX by themselves (this asks the kernel for permission).
  static bool IsNative();

  // Installs the handler. Does nothing where IsNative(), so that tests run on hardware there.
  AmxEmulator();
  ~AmxEmulator();
  AmxEmulator(const AmxEmulator&) = delete;
  AmxEmulator& operator=(const AmxEmulator&) = delete;

 private:
  bool installed_ = false;
};

}  // namespace atelier::testing
