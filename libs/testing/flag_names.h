#pragma once

#include <functional>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/status_matchers.h"

namespace atelier::testing {

// The flags that a program's --help lists, with their dashes, but for --help and --version, which
// take no value.
inline std::set<std::string> FlagNames(const std::string& help) {
  const std::regex flag("\n  (--[a-z-]+)");
  std::set<std::string> names;
  for (std::sregex_iterator it(help.begin(), help.end(), flag), end; it != end; ++it) {
    names.insert((*it)[1]);
  }
  names.erase("--help");
  names.erase("--version");
  return names;
}

// Each argument "--name=value" must be INVALID_ARGUMENT: by `parse`, with these very words, or,
// once parsed, by `validate`, with the flag and the value. Together they must name every flag of
// `help`.
inline void ExpectEveryFlagHasABadValue(
    const std::vector<std::string>& arguments, const std::string& help,
    const std::function<absl::Status(const std::string& argument)>& parse,
    const std::function<absl::Status()>& validate) {
  using ::testing::AllOf;
  using ::testing::HasSubstr;
  std::set<std::string> names;
  for (const std::string& argument : arguments) {
    const std::string flag = argument.substr(0, argument.find('='));
    std::string value = argument.substr(flag.size() + 1);
    if (value.empty()) value = "\"\"";
    names.insert(flag);
    const absl::Status parsed = parse(argument);
    if (parsed.ok()) {
      EXPECT_THAT(validate(), StatusIs(absl::StatusCode::kInvalidArgument,
                                       AllOf(HasSubstr(flag), HasSubstr(value))))
          << argument;
    } else {
      EXPECT_THAT(parsed,
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(flag + "=" + value)));
    }
  }
  EXPECT_EQ(names, FlagNames(help));
}

}  // namespace atelier::testing
