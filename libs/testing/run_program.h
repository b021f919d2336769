#pragma once

#include <string>
#include <vector>

#include "libs/testing/child_process.h"
#include "libs/testing/temp_dir.h"

namespace atelier::testing {

// How a program ended, as ChildProcess::Wait says it, and everything that it wrote.
struct Outcome {
  int status = 0;
  std::string output;
};

// Runs a program to its end; arguments[0] is its path.
inline Outcome RunProgram(const std::vector<std::string>& arguments) {
  const TempDir dir;
  ChildProcess process(arguments, dir.File("log"));
  const int status = process.Wait();
  return {status, process.Log()};
}

}  // namespace atelier::testing
