#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "gtest/gtest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace atelier::testing {

// Runs the fuzz target that is linked into this test over every file of `directory` (relative to
// the repository); there must be at least `min_inputs`.
inline void RunFuzzCorpus(const std::string& directory, int min_inputs) {
  int num_inputs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string input((std::istreambuf_iterator<char>(file)),
                            std::istreambuf_iterator<char>());
    SCOPED_TRACE(entry.path().string());
    EXPECT_EQ(LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size()),
              0);
    ++num_inputs;
  }
  EXPECT_GE(num_inputs, min_inputs);
}

}  // namespace atelier::testing
