#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace atelier::faults {

// What a process holds, from /proc.
struct ResourceUsage {
  int fds = 0;
  int shared_segments = 0;  // memfds among its mappings, each once
  int threads = 0;
  int64_t rss_bytes = 0;
};
ResourceUsage ResourcesOf(pid_t pid);
std::string ToString(const ResourceUsage& usage);

// What `now` has too much of against `before`, in words; empty = nothing. RSS may have grown by
// `rss_bytes`.
std::string Growth(const ResourceUsage& before, const ResourceUsage& now, int64_t rss_bytes);

// The value of a metric (its name with its labels) in a /metrics page; 0 when it is not there.
double MetricValue(absl::string_view page, absl::string_view name);
// The sum over all labels of a metric's samples.
double MetricSum(absl::string_view page, absl::string_view family);
// A histogram's upper bound of its samples up to a quantile, over all labels: the end of a bucket,
// infinity beyond the last; 0 when there are no samples.
double HistogramQuantile(absl::string_view page, absl::string_view family, double quantile);

}  // namespace atelier::faults
