#pragma once

#include <fstream>
#include <iterator>
#include <string>

namespace atelier::testing {

// The bytes of a file; empty where there is none.
inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace atelier::testing
