#include "libs/base/flag_names.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace atelier {
namespace {

std::string NormalizeOne(std::string argument) {
  if (argument.size() < 2 || argument[0] != '-' || argument == "--") return argument;
  const size_t name_begin = argument.rfind("--", 0) == 0 ? 2 : 1;
  const size_t name_end = std::min(argument.find('='), argument.size());
  const auto begin = argument.begin();
  std::replace(begin + static_cast<std::ptrdiff_t>(name_begin),
               begin + static_cast<std::ptrdiff_t>(name_end), '-', '_');
  return argument;
}

}  // namespace

std::vector<std::string> NormalizeFlagNames(int argc, const char* const* argv) {
  std::vector<std::string> result;
  bool positional = false;
  for (int i = 0; i < argc; ++i) {
    const std::string argument = argv[i];
    positional = positional || argument == "--";
    result.push_back(i == 0 || positional ? argument : NormalizeOne(argument));
  }
  return result;
}

std::string FlagForUsers(absl::string_view flag_name) {
  std::string result = absl::StrCat("--", flag_name);
  std::replace(result.begin(), result.end(), '_', '-');
  return result;
}

}  // namespace atelier
