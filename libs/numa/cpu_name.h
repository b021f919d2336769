#pragma once

#include <string>

namespace atelier {

// The CPU as the kernel names it in /proc/cpuinfo below `root`; "unknown" where it does not.
std::string CpuName(const std::string& root = "/");

}  // namespace atelier
