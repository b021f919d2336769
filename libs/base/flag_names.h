#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace atelier {

// Users type --cpu-isa=avx2; Abseil 20220623 only knows --cpu_isa. Returns argv with '-' turned
// into '_' inside flag names (never in values, and not after a bare "--").
std::vector<std::string> NormalizeFlagNames(int argc, const char* const* argv);

// "--cpu_isa" as users type it: "--cpu-isa". For messages.
std::string FlagForUsers(absl::string_view flag_name);

}  // namespace atelier
