#pragma once

#include <cstdint>
#include <string>

#include "libs/base/log.h"

namespace atelier {

// How much of this process's memory lies on huge pages. What cannot be read is 0 or "unknown".
struct HugePageUse {
  int64_t reserved_bytes = 0;           // on pages that the administrator reserved
  int64_t transparent_bytes = 0;        // on pages that the kernel joined
  std::string transparent = "unknown";  // the system's setting: always, madvise, never

  static HugePageUse Read(const std::string& root = "/");
};

// One line: what was obtained for `weight_bytes` of weights; a warning where that is less than half
// of them, with what to do.
void LogHugePages(const HugePageUse& use, int64_t weight_bytes, const Logger& logger);

}  // namespace atelier
