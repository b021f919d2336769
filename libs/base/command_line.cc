#include "libs/base/command_line.h"

#include <iostream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "libs/base/version.h"

namespace atelier {

std::optional<int> AnswerCommandLine(const std::string& program, const FlagTable& flags, int argc,
                                     const char* const* argv,
                                     const std::function<absl::Status()>& validate) {
  const absl::StatusOr<CommandLine> command = flags.Parse(argc, argv);
  if (command.ok() && *command == CommandLine::kHelp) {
    std::cout << flags.Help();
    return StatusOfOutput(program, 0);
  }
  if (command.ok() && *command == CommandLine::kVersion) {
    std::cout << program << " " << Version() << "\n";
    return StatusOfOutput(program, 0);
  }
  const absl::Status valid = command.ok() ? validate() : command.status();
  if (valid.ok()) return std::nullopt;
  std::cerr << program << ": " << valid.message() << "\n";
  return 2;
}

int StatusOfOutput(const std::string& program, int status) {
  if (std::cout.flush()) return status;
  std::cerr << program << ": standard output cannot be written: is its disk full?\n";
  return status == 0 ? 1 : status;
}

int FailureExitStatus(const absl::Status& status) {
  const bool of_a_value = absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status) ||
                          absl::IsFailedPrecondition(status);
  return of_a_value && absl::StartsWith(status.message(), "--") ? 2 : 1;
}

absl::Status NameFlags(const absl::Status& status,
                       const std::vector<std::pair<std::string, std::string>>& names) {
  for (const auto& [field, flag] : names) {
    absl::string_view rest = status.message();
    if (absl::ConsumePrefix(&rest, field))
      return absl::Status(status.code(), absl::StrCat(flag, rest));
  }
  return status;
}

}  // namespace atelier
