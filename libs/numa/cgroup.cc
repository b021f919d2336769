#include "libs/numa/cgroup.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "libs/numa/system_files.h"

namespace atelier {
namespace {

struct Group {
  std::string path;  // of its folder, below root
  bool is_v2 = false;
};

std::optional<int64_t> ReadNumber(const std::string& path) {
  const std::optional<std::string> text = ReadSystemFile(path);
  int64_t value = 0;
  if (!text || !absl::SimpleAtoi(absl::StripAsciiWhitespace(*text), &value)) return std::nullopt;
  return value;
}

// `path` and its parents up to "/". A container without a cgroup namespace sees the host's path but
// has its own group mounted as the root: then only the root exists, and that is the right one.
std::vector<std::string> SelfAndParents(absl::string_view path) {
  std::vector<std::string> result;
  // "/../x" is a group outside the namespace: nothing of it is visible but the root.
  std::string current = absl::StrContains(path, "..") ? "" : std::string(path);
  while (current.size() > 1) {
    result.push_back(current);
    current.resize(current.rfind('/') == std::string::npos ? 0 : current.rfind('/'));
  }
  result.emplace_back("");
  return result;
}

bool HasController(absl::string_view controllers, absl::string_view wanted) {
  for (const absl::string_view name : absl::StrSplit(controllers, ',')) {
    if (name == wanted) return true;
  }
  return false;
}

// The groups of this process that `controller` may limit, wherever distributions mount them.
std::vector<Group> GroupsOf(const std::string& root, absl::string_view controller) {
  std::vector<Group> groups;
  const std::string mount = absl::StrCat(root, "/sys/fs/cgroup");
  const std::string membership =
      ReadSystemFile(absl::StrCat(root, "/proc/self/cgroup")).value_or("");
  for (const absl::string_view line : absl::StrSplit(membership, '\n', absl::SkipEmpty())) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const bool is_v2 = fields[1].empty();
    if (!is_v2 && !HasController(fields[1], controller)) continue;
    const std::vector<std::string> mounts =
        is_v2 ? std::vector<std::string>{mount, absl::StrCat(mount, "/unified")}
              : std::vector<std::string>{absl::StrCat(mount, "/", controller),
                                         absl::StrCat(mount, "/", fields[1])};
    for (const std::string& base : mounts) {
      for (const std::string& path : SelfAndParents(fields[2])) {
        groups.push_back({absl::StrCat(base, path), is_v2});
      }
    }
  }
  return groups;
}

// "max 100000" or "50000 100000": microseconds of CPU time per period.
double QuotaV2(const std::string& folder) {
  const std::string text = ReadSystemFile(absl::StrCat(folder, "/cpu.max")).value_or("");
  const std::vector<absl::string_view> words =
      absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  int64_t quota = 0;
  int64_t period = 0;
  if (words.size() != 2 || !absl::SimpleAtoi(words[0], &quota) ||
      !absl::SimpleAtoi(words[1], &period) || quota <= 0 || period <= 0) {
    return 0;
  }
  return static_cast<double>(quota) / static_cast<double>(period);
}

double QuotaV1(const std::string& folder) {
  const int64_t quota = ReadNumber(absl::StrCat(folder, "/cpu.cfs_quota_us")).value_or(-1);
  const int64_t period = ReadNumber(absl::StrCat(folder, "/cpu.cfs_period_us")).value_or(0);
  if (quota <= 0 || period <= 0) return 0;
  return static_cast<double>(quota) / static_cast<double>(period);
}

int64_t AvailableIn(const Group& group) {
  const auto file = [&](absl::string_view name) { return absl::StrCat(group.path, "/", name); };
  const std::optional<int64_t> limit =
      ReadNumber(file(group.is_v2 ? "memory.max" : "memory.limit_in_bytes"));
  const std::optional<int64_t> used =
      ReadNumber(file(group.is_v2 ? "memory.current" : "memory.usage_in_bytes"));
  if (!limit || !used) return kUnlimitedBytes;
  // v1 counts the group's children only in the total_* lines.
  const std::string prefix = group.is_v2 ? "" : "total_";
  const std::string stat = ReadSystemFile(file("memory.stat")).value_or("");
  const int64_t cache = FindCounter(stat, prefix + "inactive_file").value_or(0) +
                        FindCounter(stat, prefix + "active_file").value_or(0);
  const int64_t held = std::max<int64_t>(*used - cache, 0);
  return std::max<int64_t>(*limit - held, 0);
}

}  // namespace

double CgroupCpuQuota(const std::string& root) {
  double tightest = 0;
  for (const Group& group : GroupsOf(root, "cpu")) {
    const double quota = group.is_v2 ? QuotaV2(group.path) : QuotaV1(group.path);
    if (quota > 0 && (tightest == 0 || quota < tightest)) tightest = quota;
  }
  return tightest;
}

int64_t CgroupAvailableBytes(const std::string& root) {
  int64_t tightest = kUnlimitedBytes;
  for (const Group& group : GroupsOf(root, "memory")) {
    tightest = std::min(tightest, AvailableIn(group));
  }
  return tightest;
}

}  // namespace atelier
