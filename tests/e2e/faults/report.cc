#include "tests/e2e/faults/report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace atelier::faults {
namespace {

void AppendRow(absl::string_view name, std::vector<absl::Duration> gaps, std::string* text) {
  if (gaps.empty()) return;
  std::sort(gaps.begin(), gaps.end());
  const auto at = [&](size_t percent) {
    return absl::ToDoubleMilliseconds(gaps[(gaps.size() - 1) * percent / 100]);
  };
  absl::StrAppend(text, absl::StrFormat("%-16s %6d %9.1f %9.1f %9.1f\n", name, gaps.size(), at(50),
                                        at(99), at(100)));
}

}  // namespace

void Tally::Count(Verdict verdict, size_t num_tokens) {
  ++sequences;
  tokens += static_cast<int64_t>(num_tokens);
  ended += verdict == Verdict::kEnded ? 1 : 0;
  lost += verdict == Verdict::kLost ? 1 : 0;
  changed += verdict == Verdict::kChanged ? 1 : 0;
}

std::string SummaryLine(const Tally& tally) {
  return absl::StrCat(tally.kills, " kills, ", tally.faults, " faults, ", tally.sequences,
                      " sequences, ", tally.tokens, " tokens: ", tally.lost, " lost, ",
                      tally.changed, " changed");
}

void StallTable::Add(FaultKind kind, absl::Duration longest_gap) {
  gaps_[kind].push_back(longest_gap);
}

std::string StallTable::ToText() const {
  std::string text = absl::StrFormat("%-16s %6s %9s %9s %9s   longest silence of a stream, ms\n",
                                     "fault", "count", "p50", "p99", "max");
  AppendRow("(none)", quiet_, &text);
  for (const auto& [kind, gaps] : gaps_) AppendRow(InfoOf(kind).name, gaps, &text);
  return text;
}

}  // namespace atelier::faults
