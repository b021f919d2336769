#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "services/gpu-frontend/engine/kv_block_manager.h"
#include "services/gpu-frontend/engine/token_history.h"

namespace atelier {

struct Sequence;
// The n sequences of a request, by index.
using SequenceGroup = std::vector<std::unique_ptr<Sequence>>;

enum class SequenceState { kNew, kWaiting, kRunning, kFinished };

// One text in the making. Written by the scheduler (state, num_computed, blocks) and by
// EngineCore (the rest), on one thread.
struct Sequence {
  uint64_t arrival = 0;  // of its request: earlier ones are smaller
  int index = 0;         // in its request
  const SequenceGroup* group = nullptr;

  std::vector<int32_t> tokens;  // prompt, then output
  int prompt_size = 0;
  int num_computed = 0;  // leading tokens whose keys and values lie in `blocks`
  KvBlockTable blocks;
  SequenceState state = SequenceState::kNew;
  // First prompt position whose log-probability is still to be computed (from the logits of the
  // position before); prompt_size = none is.
  int next_prompt_logprob = 0;
  int num_cached_on_arrival = 0;  // tokens the prefix cache held when it was queued

  TokenHistory history;
  absl::Time last_token_time = absl::InfinitePast();

  int size() const { return static_cast<int>(tokens.size()); }
  int num_output() const { return size() - prompt_size; }
  int num_remaining() const { return size() - num_computed; }  // 1 = a decode
  bool wants_prompt_logits() const { return next_prompt_logprob < prompt_size; }
};

}  // namespace atelier
