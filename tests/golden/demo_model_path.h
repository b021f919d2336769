#pragma once

#include <cstdlib>
#include <string>

namespace atelier::golden {

inline std::string DemoModelDirectory() {
  const char* named = std::getenv("ATELIER_DEMO_MODEL");
  return named != nullptr ? named : "build/demo-model";
}

}  // namespace atelier::golden
