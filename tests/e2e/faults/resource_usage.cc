#include "tests/e2e/faults/resource_usage.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace atelier::faults {
namespace {

// gRPC starts and ends threads as it sees fit.
constexpr int kThreadSlack = 16;

int CountEntries(const std::string& folder) {
  std::error_code gone;
  int count = 0;
  for (auto it = std::filesystem::directory_iterator(folder, gone);
       !gone && it != std::filesystem::directory_iterator(); it.increment(gone)) {
    ++count;
  }
  return count;
}

int CountSharedSegments(const std::string& maps_path) {
  std::set<std::string> inodes;
  std::ifstream maps(maps_path);
  for (std::string line; std::getline(maps, line);) {
    if (!absl::StrContains(line, "/memfd:")) continue;
    const std::vector<std::string> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (fields.size() > 4) inodes.insert(fields[4]);
  }
  return static_cast<int>(inodes.size());
}

}  // namespace

ResourceUsage ResourcesOf(pid_t pid) {
  const std::string folder = absl::StrCat("/proc/", pid);
  ResourceUsage usage;
  usage.fds = CountEntries(folder + "/fd");
  usage.threads = CountEntries(folder + "/task");
  usage.shared_segments = CountSharedSegments(folder + "/maps");
  std::ifstream statm(folder + "/statm");
  int64_t size_pages = 0, resident_pages = 0;
  statm >> size_pages >> resident_pages;
  usage.rss_bytes = resident_pages * ::sysconf(_SC_PAGESIZE);
  return usage;
}

std::string ToString(const ResourceUsage& usage) {
  return absl::StrCat("fds=", usage.fds, " shared_segments=", usage.shared_segments,
                      " threads=", usage.threads, " rss=", usage.rss_bytes >> 20, "MiB");
}

std::string Growth(const ResourceUsage& before, const ResourceUsage& now, int64_t rss_bytes) {
  std::string text;
  const auto grown = [&text](absl::string_view what, int64_t was, int64_t is) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", what, " grew from ", was, " to ", is);
  };
  if (now.fds > before.fds) grown("fds", before.fds, now.fds);
  if (now.shared_segments > before.shared_segments) {
    grown("shared segments", before.shared_segments, now.shared_segments);
  }
  if (now.threads > before.threads + kThreadSlack) grown("threads", before.threads, now.threads);
  if (now.rss_bytes > before.rss_bytes + rss_bytes) {
    grown("resident bytes", before.rss_bytes, now.rss_bytes);
  }
  return text;
}

double MetricValue(absl::string_view page, absl::string_view name) {
  for (absl::string_view line : absl::StrSplit(page, '\n')) {
    double value = 0;
    if (absl::ConsumePrefix(&line, name) && absl::ConsumePrefix(&line, " ") &&
        absl::SimpleAtod(absl::StripAsciiWhitespace(line), &value)) {
      return value;
    }
  }
  return 0;
}

double MetricSum(absl::string_view page, absl::string_view family) {
  double sum = 0;
  for (absl::string_view line : absl::StrSplit(page, '\n')) {
    double value = 0;
    if (!absl::ConsumePrefix(&line, family) || line.empty() || (line[0] != '{' && line[0] != ' ')) {
      continue;
    }
    const size_t blank = line.rfind(' ');
    if (absl::SimpleAtod(absl::StripAsciiWhitespace(line.substr(blank + 1)), &value)) sum += value;
  }
  return sum;
}

double HistogramQuantile(absl::string_view page, absl::string_view family, double quantile) {
  std::map<double, double> counts;  // samples up to each bound
  for (absl::string_view line : absl::StrSplit(page, '\n')) {
    if (!absl::ConsumePrefix(&line, family) || !absl::ConsumePrefix(&line, "_bucket{")) continue;
    const std::pair<absl::string_view, absl::string_view> at_bound =
        absl::StrSplit(line, absl::MaxSplits("le=\"", 1));
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(at_bound.second, absl::MaxSplits('"', 1));
    double bound = 0, count = 0;
    const absl::string_view number = parts.second.substr(parts.second.find(' ') + 1);
    if (absl::SimpleAtod(parts.first, &bound) &&
        absl::SimpleAtod(absl::StripAsciiWhitespace(number), &count)) {
      counts[bound] += count;
    }
  }
  if (counts.empty() || counts.rbegin()->second == 0) return 0;
  const double wanted = quantile * counts.rbegin()->second;
  return std::find_if(counts.begin(), counts.end(),
                      [&](const auto& c) { return c.second >= wanted; })
      ->first;
}

}  // namespace atelier::faults
