#pragma once

#include "absl/time/time.h"

namespace atelier {

// How many prompt tokens a step may take so that it lasts about `max_step`: from the time of the
// steps before, in which the tokens weigh and the latest steps most. It steers by what whole steps
// cost, so whatever else is in them (decodes, growing contexts, a busy machine) is answered for a
// step later. Deterministic; not thread-safe.
class StepPacer {
 public:
  // Fewer prompt tokens than this (or than `max_tokens`) are never planned, however long a step
  // takes: a prompt has to get on, and a step has costs of its own.
  static constexpr int kMinTokens = 16;

  // `max_tokens` is the most that PromptTokens() answers; max_step 0 = no bound by time.
  StepPacer(int max_tokens, absl::Duration max_step);

  // `shared`: somebody else waits for the step to end. Where nobody does it is as large as it may
  // be, which is the fastest for the one request. Before the first Record a shared step is small.
  int PromptTokens(bool shared) const;
  // A step that ended well. Ignored where it held no prompt tokens.
  void Record(int prompt_tokens, absl::Duration took);

 private:
  const int max_tokens_;
  const absl::Duration max_step_;
  double tokens_ = 0;  // of recent steps, each counting half of the next
  double seconds_ = 0;
};

}  // namespace atelier
