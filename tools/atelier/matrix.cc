#include <iostream>

#include "libs/base/command_line.h"
#include "tools/atelier/command.h"
#include "tools/atelier/support_matrix.h"

namespace atelier {

int RunMatrix(int argc, const char* const* argv) {
  const FlagTable flags(
      "usage: atelier matrix\n\n"
      "Prints docs/support-matrix.md: which model families, formats and methods this build has.\n\n"
      "exit status: 0 printed, 2 bad usage.",
      {});
  if (const auto status =
          AnswerCommandLine("atelier matrix", flags, argc, argv, [] { return absl::OkStatus(); })) {
    return *status;
  }
  std::cout << SupportMatrix();
  return 0;
}

}  // namespace atelier
