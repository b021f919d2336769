#pragma once

#include <string>

#include "tests/e2e/faults/sequence.h"

namespace atelier::faults {

enum class Verdict {
  kSame,     // whole, and equal to the fault-free run bit for bit
  kEnded,    // ended early as it may (aborted, or nobody left to serve it); equal so far
  kLost,     // ended early although it could have been served
  kChanged,  // a token or a log probability differs
};

struct Judgement {
  Verdict verdict = Verdict::kSame;
  std::string why;  // for kLost and kChanged
};

// `may_end_early`: the client or the fault asked for that.
Judgement Judge(const Sequence& expected, const Sequence& seen, bool may_end_early);

}  // namespace atelier::faults
