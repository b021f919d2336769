// Kills, freezes and cuts off real processes under load: see README.md of this folder.
#include <cstdio>

#include "libs/base/command_line.h"
#include "tests/e2e/faults/run.h"

int main(int argc, char** argv) {
  atelier::faults::Options options;
  const std::optional<int> status =
      atelier::AnswerCommandLine("scripts/faults", atelier::faults::Flags(&options), argc, argv,
                                 [&] { return options.Validate(); });
  if (status.has_value()) return *status;
  if (options.list) {
    std::fputs(atelier::faults::MenuText().c_str(), stdout);
    return 0;
  }
  return atelier::faults::RunFaults(options);
}
