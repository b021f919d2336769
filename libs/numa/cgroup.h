#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace atelier {

inline constexpr int64_t kUnlimitedBytes = std::numeric_limits<int64_t>::max();

// What the control groups of this process allow, read below `root` ("/" on a real machine): cgroup
// v2 and v1, the tightest of the process's group and all its parents. What cannot be read limits
// nothing.

// CPUs per second of wall time by the bandwidth controller; 0 = no limit.
double CgroupCpuQuota(const std::string& root);

// Bytes that the process's groups may still allocate, counting page cache as free;
// kUnlimitedBytes without a limit, 0 when it is used up.
int64_t CgroupAvailableBytes(const std::string& root);

}  // namespace atelier
