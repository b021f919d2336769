#pragma once

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "libs/kernels/kernel_table.h"
#include "libs/kernels/pack.h"
#include "libs/model/dtype.h"
#include "libs/testing/amx_emulator.h"

namespace atelier::testing {

// What tests can execute: the features of this CPU, and AMX, for which the emulator is installed
// for the rest of the process where the CPU has none.
inline CpuFeatures FeaturesUnderTest() {
  static const AmxEmulator emulator;
  CpuFeatures features = CpuFeatures::Detect();
  features.amx_tile = features.amx_int8 = features.amx_bf16 = true;
  return features;
}

// The rows of the kernel table that this host can run, best first per method: the parameters of a
// suite that compares every ISA.
inline std::vector<KernelEntry> SupportedKernels() {
  const CpuFeatures features = FeaturesUnderTest();
  std::vector<KernelEntry> supported;
  for (const KernelEntry& entry : KernelTable::Candidates()) {
    if (entry.supported(features)) supported.push_back(entry);
  }
  return supported;
}

inline std::vector<KernelEntry> SupportedKernels(Method method) {
  std::vector<KernelEntry> supported;
  for (const KernelEntry& entry : SupportedKernels()) {
    if (entry.method == method) supported.push_back(entry);
  }
  return supported;
}

// Those whose weights PackMatrix makes from floats: BF16 and INT8.
inline std::vector<KernelEntry> SupportedPlainKernels() {
  std::vector<KernelEntry> plain = SupportedKernels(Method::kBF16);
  for (const KernelEntry& entry : SupportedKernels(Method::kINT8)) plain.push_back(entry);
  return plain;
}

// Those of the block-quantised methods.
inline std::vector<KernelEntry> SupportedBlockKernels() {
  std::vector<KernelEntry> blocks;
  for (const KernelEntry& entry : SupportedKernels()) {
    if (BlockFormatOf(entry.method) != nullptr) blocks.push_back(entry);
  }
  return blocks;
}

// Those of the FP8 methods.
inline std::vector<KernelEntry> SupportedFp8Kernels() {
  std::vector<KernelEntry> fp8;
  for (const KernelEntry& entry : SupportedKernels()) {
    if (IsFp8(entry.method)) fp8.push_back(entry);
  }
  return fp8;
}

// "BF16_avx2", …
inline std::string KernelName(const ::testing::TestParamInfo<KernelEntry>& info) {
  return std::string(MethodName(info.param.method)) + "_" + info.param.isa;
}

}  // namespace atelier::testing
