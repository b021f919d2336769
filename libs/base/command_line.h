#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "libs/base/flag_table.h"

namespace atelier {

// What a program does with its command line before anything else: answers --help and --version on
// standard output (0), or says on standard error what is wrong with a flag or, by `validate`, with
// the values together (2). The number is the exit status; nullopt = go on.
std::optional<int> AnswerCommandLine(const std::string& program, const FlagTable& flags, int argc,
                                     const char* const* argv,
                                     const std::function<absl::Status()>& validate);

}  // namespace atelier
