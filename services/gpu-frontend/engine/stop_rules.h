#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "services/gpu-frontend/engine/request.h"

namespace atelier {

// Which tokens end a request's sequences. A model's end-of-sequence id wins over the same id in
// stop_token_ids, unless ignore_eos makes it an ordinary token. Immutable.
class StopRules {
 public:
  enum class Verdict {
    kContinue,
    kEndOfSequence,  // ends the text and is no part of it
    kStopToken,      // ends the text and is its last token
  };

  StopRules(const SamplingOptions& options, absl::Span<const int32_t> eos_token_ids);

  Verdict Judge(int32_t token) const;
  // Ids that may not follow `num_output` tokens: those that would end the text before
  // min_new_tokens.
  absl::Span<const int32_t> Forbidden(int num_output) const;

 private:
  std::vector<int32_t> eos_;    // sorted; empty with ignore_eos
  std::vector<int32_t> stops_;  // sorted
  std::vector<int32_t> all_;    // both
  int min_new_tokens_;
};

}  // namespace atelier
