#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace atelier {

// Neutral sampling options: adapters in api/ map their wire's defaults to these.
struct SamplingOptions {
  float temperature = 1.0f;         // 0 = greedy
  int top_k = 0;                    // <= 0 = off
  float top_p = 1.0f;               // (0, 1]
  float min_p = 0.0f;               // [0, 1]
  float frequency_penalty = 0.0f;   // [-2, 2]
  float presence_penalty = 0.0f;    // [-2, 2]
  float repetition_penalty = 1.0f;  // (0, 2]
  std::map<int32_t, float> logit_bias;
  std::optional<uint64_t> seed;       // unset = a fresh one per request
  std::optional<int> max_new_tokens;  // unset = the room left in the context
  int min_new_tokens = 0;
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids;  // end the text and are part of the output; end-of-sequence
                                        // ids are the model's
  int n = 1;                            // sequences per request
};

struct LogprobOptions {
  bool enabled = false;   // of the chosen tokens
  int top = 0;            // most likely tokens per position
  int prompt_start = -1;  // first prompt position to report; -1 = none
  std::vector<int32_t>
      token_ids;  // further tokens to report per position (not yet supported by any adapter)
};

struct GenerateRequest {
  std::string id;
  std::vector<int32_t> prompt;
  SamplingOptions sampling;
  LogprobOptions logprobs;
};

struct TokenLogprob {
  int32_t token = 0;
  std::optional<float> logprob;  // unset for the first prompt token
  std::vector<std::pair<int32_t, float>> top;
};

enum class FinishReason { kStop, kLength, kAbort };

// What happened to one of a request's n sequences in one step.
struct TokenDelta {
  int index = 0;                // 0 … n-1
  std::vector<int32_t> tokens;  // new output tokens; an end-of-sequence id is never among them
  std::vector<TokenLogprob> logprobs;         // parallel to tokens, if asked for
  std::vector<TokenLogprob> prompt_logprobs;  // with the first delta of index 0, if asked for
  int prompt_tokens = 0;
  int completion_tokens = 0;             // cumulative, end-of-sequence counted
  int cached_tokens = 0;                 // prompt tokens found in the prefix cache
  std::optional<FinishReason> finish;    // set in the sequence's last delta
  std::optional<int32_t> matched_token;  // the stop or end-of-sequence id that ended it
};

// Receives a request's events. Called from the engine's thread: must not block. Exactly one of:
// OnDelta with finish for every index, or OnError once; nothing after that.
class RequestSink {
 public:
  virtual ~RequestSink() = default;
  virtual void OnDelta(TokenDelta delta) = 0;
  virtual void OnError(absl::Status status) = 0;
};

}  // namespace atelier
