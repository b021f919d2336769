#pragma once

#include <regex>
#include <set>
#include <string>

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

// The flags of arguments "--name=value".
template <typename Arguments>
std::set<std::string> FlagNamesOf(const Arguments& arguments) {
  std::set<std::string> names;
  for (const std::string& argument : arguments)
    names.insert(argument.substr(0, argument.find('=')));
  return names;
}

}  // namespace atelier::testing
