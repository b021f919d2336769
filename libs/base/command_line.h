#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "libs/base/flag_table.h"

namespace atelier {

// What a program does with its command line before anything else: answers --help and --version on
// standard output (0; 1 if that is lost), or says on standard error what is wrong with a flag or,
// by `validate`, with the values together (2). The number is the exit status; nullopt = go on.
std::optional<int> AnswerCommandLine(const std::string& program, const FlagTable& flags, int argc,
                                     const char* const* argv,
                                     const std::function<absl::Status()>& validate);

// `status`, or 1 in the place of 0 and a message where what was printed did not arrive: a reader
// of a cut answer must not take it for whole.
int StatusOfOutput(const std::string& program, int status);

// How a program ends that could not start: 2 when `status` (INVALID_ARGUMENT,
// RESOURCE_EXHAUSTED or FAILED_PRECONDITION, and its message begins with the flag) is about the
// value of a flag that only the machine or the model could judge; else 1.
int FailureExitStatus(const absl::Status& status);

// The same status, its message beginning as users type the flag where it begins with what a library
// calls the field, e.g. {{"num_threads=", "--threads="}}.
absl::Status NameFlags(const absl::Status& status,
                       const std::vector<std::pair<std::string, std::string>>& names);

}  // namespace atelier
