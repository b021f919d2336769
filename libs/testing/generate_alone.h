#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "libs/testing/fake_model_runner.h"
#include "services/gpu-frontend/engine/request_limits.h"
#include "services/gpu-frontend/engine/sampler.h"

namespace atelier::testing {

struct TextAlone {
  std::vector<int32_t> tokens;
  FinishReason finish = FinishReason::kLength;
  std::optional<int32_t> matched_token;
  int completion_tokens = 0;
};

// What a request's sequence must say, computed the slow obvious way: no batch, no KV cache.
// REQUIRES: the request brings a seed or is greedy.
inline TextAlone GenerateAlone(const FakeModelRunner& model, const GenerateRequest& request,
                               int index, const std::vector<int32_t>& eos,
                               const RequestLimits& limits) {
  const auto contains = [](const std::vector<int32_t>& ids, int32_t token) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  const SamplingOptions& options = request.sampling;
  const std::vector<int32_t> ends = options.ignore_eos ? std::vector<int32_t>{} : eos;
  std::vector<int32_t> all = request.prompt;
  TokenHistory history;
  history.AddPrompt(all);
  Sampler sampler;
  TextAlone text;
  const int max_new_tokens = MaxNewTokens(request, limits);
  while (text.completion_tokens < max_new_tokens) {
    std::vector<int32_t> forbidden;
    if (text.completion_tokens < options.min_new_tokens) {
      forbidden = options.stop_token_ids;
      forbidden.insert(forbidden.end(), ends.begin(), ends.end());
    }
    const RandomKey random{options.seed.value_or(0), static_cast<uint32_t>(index),
                           static_cast<uint32_t>(all.size())};
    const std::vector<float> logits = model.LogitsAfter(all);
    const int32_t token = sampler.Sample({logits, options, history, forbidden, random}).value();
    ++text.completion_tokens;
    const bool is_end = contains(ends, token);
    if (!is_end) {
      all.push_back(token);
      text.tokens.push_back(token);
      history.AddOutput(token);
    }
    if (is_end || contains(options.stop_token_ids, token)) {
      text.finish = FinishReason::kStop;
      text.matched_token = token;
      break;
    }
  }
  return text;
}

}  // namespace atelier::testing
