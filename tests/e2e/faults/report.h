#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/e2e/faults/fault_menu.h"
#include "tests/e2e/faults/oracle.h"

namespace atelier::faults {

// What a run has seen so far.
struct Tally {
  int64_t kills = 0;
  int64_t faults = 0;
  int64_t sequences = 0;
  int64_t tokens = 0;
  int64_t ended = 0;  // early, as they might
  int64_t lost = 0;
  int64_t changed = 0;

  void Count(Verdict verdict, size_t num_tokens);
};

// The last line of a run: "N kills, N faults, N sequences, N tokens: 0 lost, 0 changed".
std::string SummaryLine(const Tally& tally);

// Longest silence of any stream between a fault and its healing, by kind of fault.
class StallTable {
 public:
  void Add(FaultKind kind, absl::Duration longest_gap);
  // The same in a while without any fault, to compare with.
  void AddQuiet(absl::Duration longest_gap) { quiet_.push_back(longest_gap); }
  // Rows "fault count p50 p99 max", milliseconds.
  std::string ToText() const;

 private:
  std::map<FaultKind, std::vector<absl::Duration>> gaps_;
  std::vector<absl::Duration> quiet_;
};

}  // namespace atelier::faults
