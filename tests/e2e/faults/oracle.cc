#include "tests/e2e/faults/oracle.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace atelier::faults {
namespace {

bool SameBits(float a, float b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

// Where `seen` stops being the beginning of `expected`; empty = nowhere.
std::string FirstDifference(const Sequence& expected, const Sequence& seen) {
  if (seen.logprobs.size() != seen.tokens.size()) {
    return absl::StrCat(seen.tokens.size(), " tokens came with ", seen.logprobs.size(),
                        " log probabilities");
  }
  for (size_t i = 0; i < seen.tokens.size(); ++i) {
    if (i >= expected.tokens.size()) {
      return absl::StrCat("it has more than the ", i, " tokens expected");
    }
    if (seen.tokens[i] != expected.tokens[i]) {
      return absl::StrCat("token ", i, " is ", seen.tokens[i], ", expected ", expected.tokens[i]);
    }
    if (!SameBits(seen.logprobs[i], expected.logprobs[i])) {
      return absl::StrFormat("the log probability of token %d is %.9g, expected %.9g", i,
                             seen.logprobs[i], expected.logprobs[i]);
    }
  }
  return "";
}

}  // namespace

Judgement Judge(const Sequence& expected, const Sequence& seen, bool may_end_early) {
  if (std::string why = FirstDifference(expected, seen); !why.empty()) {
    return {Verdict::kChanged, std::move(why)};
  }
  const std::string length =
      absl::StrCat(seen.tokens.size(), " of ", expected.tokens.size(), " tokens");
  if (seen.finished && seen.tokens.size() < expected.tokens.size()) {
    return {Verdict::kChanged, absl::StrCat("it says it is whole with ", length)};
  }
  if (seen.finished && seen.status.ok()) return {Verdict::kSame, ""};
  if (may_end_early) return {Verdict::kEnded, ""};
  return {Verdict::kLost, absl::StrCat("it ended after ", length, ": ", seen.status.ToString())};
}

}  // namespace atelier::faults
