#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace atelier::faults {

// What a client asks for; the same again and again, so that every answer is known.
struct StreamRequest {
  std::vector<uint32_t> prompt;
  uint32_t max_new_tokens = 1;
  float temperature = 0;  // 0 = greedy
  uint32_t seed = 0;      // of sampling
  bool ignore_eos = false;
};

// What came of it.
struct Sequence {
  std::vector<uint32_t> tokens;
  // One per token. They depend on every bit of every layer's sums, so equal ones say that each
  // layer's sums of each token were added once: neither missing, nor twice, nor another's.
  std::vector<float> logprobs;
  bool finished = false;     // by its length or a stop token
  absl::Status status = {};  // how the stream ended
};

// `count` requests of varied lengths, every other one sampled. A pure function of its arguments.
std::vector<StreamRequest> MakeRequests(uint64_t seed, int count, uint32_t vocab_size);

}  // namespace atelier::faults
