#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "gtest/gtest.h"
#include "libs/testing/read_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace atelier::testing {

// Runs the fuzz target that is linked into this test over every file of `directory` (relative to
// the repository); there must be at least `min_inputs`.
inline void RunFuzzCorpus(const std::string& directory, int min_inputs) {
  int num_inputs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string input = ReadFile(entry.path());
    SCOPED_TRACE(entry.path().string());
    EXPECT_EQ(LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size()),
              0);
    ++num_inputs;
  }
  EXPECT_GE(num_inputs, min_inputs);
}

}  // namespace atelier::testing
