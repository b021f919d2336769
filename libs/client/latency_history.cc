#include "libs/client/latency_history.h"

#include <algorithm>
#include <bit>

namespace atelier {

size_t LatencyHistory::SizeOf(int rows) {
  const auto width = static_cast<size_t>(std::bit_width(static_cast<unsigned>(std::max(rows, 1))));
  return std::min(width - 1, kNumSizes - 1);
}

void LatencyHistory::Add(int rows, absl::Duration latency) {
  Size& size = sizes_[SizeOf(rows)];
  if (size.window.size() < kWindow) {
    size.window.push_back(latency);
  } else {
    size.window[size.next] = latency;
    size.next = (size.next + 1) % kWindow;
  }
  if (++size.new_samples < kEvery && size.window.size() > kEvery) return;
  size.new_samples = 0;
  std::vector<absl::Duration> sorted = size.window;
  const size_t rank = sorted.size() - 1 - sorted.size() / 20;
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(rank),
                   sorted.end());
  size.p95 = sorted[rank];
}

std::optional<LatencyHistory::Usual> LatencyHistory::UsualFor(int rows) const {
  const size_t wanted = SizeOf(rows);
  if (sizes_[wanted].p95.has_value()) return Usual{*sizes_[wanted].p95, false};
  std::optional<absl::Duration> guess;
  for (size_t below = 1; below <= wanted && !guess.has_value(); ++below) {
    const std::optional<absl::Duration>& p95 = sizes_[wanted - below].p95;
    if (p95.has_value()) guess = *p95 * (int64_t{1} << below);
  }
  for (size_t size = wanted + 1; size < kNumSizes; ++size) {
    const std::optional<absl::Duration>& p95 = sizes_[size].p95;
    if (!p95.has_value()) continue;
    guess = std::min(guess.value_or(*p95), *p95);
    break;
  }
  if (!guess.has_value()) return std::nullopt;
  return Usual{*guess, true};
}

}  // namespace atelier
