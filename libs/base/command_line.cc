#include "libs/base/command_line.h"

#include <iostream>

#include "libs/base/version.h"

namespace atelier {

std::optional<int> AnswerCommandLine(const std::string& program, const FlagTable& flags, int argc,
                                     const char* const* argv,
                                     const std::function<absl::Status()>& validate) {
  const absl::StatusOr<CommandLine> command = flags.Parse(argc, argv);
  if (command.ok() && *command == CommandLine::kHelp) {
    std::cout << flags.Help();
    return 0;
  }
  if (command.ok() && *command == CommandLine::kVersion) {
    std::cout << program << " " << Version() << "\n";
    return 0;
  }
  const absl::Status valid = command.ok() ? validate() : command.status();
  if (valid.ok()) return std::nullopt;
  std::cerr << program << ": " << valid.message() << "\n";
  return 2;
}

}  // namespace atelier
