#include "services/gpu-frontend/engine/request_limits.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "libs/base/status_macros.h"

namespace atelier {
namespace {

// Each sequence holds a copy of the prompt and a row of logits.
constexpr int kMaxSequencesPerRequest = 128;

absl::Status Bad(absl::string_view field, absl::string_view value, absl::string_view limit) {
  return absl::InvalidArgumentError(absl::StrCat(field, "=", value, ": must be ", limit));
}

absl::Status CheckRange(absl::string_view field, float value, float low, float high) {
  if (value >= low && value <= high) return absl::OkStatus();  // false for NaN
  return Bad(field, absl::StrCat(value), absl::StrCat("in [", low, ", ", high, "]"));
}

absl::Status CheckToken(absl::string_view field, int32_t token, int vocab_size) {
  if (token >= 0 && token < vocab_size) return absl::OkStatus();
  return Bad(field, absl::StrCat(token), absl::StrCat("a token id in [0, ", vocab_size, ")"));
}

absl::Status CheckPrompt(const GenerateRequest& request, const RequestLimits& limits) {
  const size_t size = request.prompt.size();
  if (size == 0) return absl::InvalidArgumentError("prompt: must hold at least one token");
  for (size_t i = 0; i < size; ++i) {
    ATELIER_RETURN_IF_ERROR(
        CheckToken(absl::StrCat("prompt[", i, "]"), request.prompt[i], limits.vocab_size));
  }
  const bool generates = request.sampling.max_new_tokens.value_or(1) > 0;
  const size_t needed = size + (generates ? 1 : 0);
  const absl::string_view hint = generates ? " with room for one new token" : "";
  if (needed > static_cast<size_t>(limits.max_context)) {
    return absl::InvalidArgumentError(absl::StrCat("prompt of ", size, " tokens does not fit", hint,
                                                   " into the context of ", limits.max_context,
                                                   " tokens"));
  }
  if (needed > static_cast<size_t>(limits.kv_capacity)) {
    return absl::InvalidArgumentError(absl::StrCat("prompt of ", size, " tokens does not fit", hint,
                                                   " into the KV cache of ", limits.kv_capacity,
                                                   " tokens: give the frontend a larger KV cache"));
  }
  return absl::OkStatus();
}

absl::Status CheckDistribution(const SamplingOptions& s, int vocab_size) {
  if (!(s.temperature >= 0 && std::isfinite(s.temperature))) {
    return Bad("temperature", absl::StrCat(s.temperature), "finite and >= 0");
  }
  if (!(s.top_p > 0 && s.top_p <= 1)) return Bad("top_p", absl::StrCat(s.top_p), "in (0, 1]");
  ATELIER_RETURN_IF_ERROR(CheckRange("min_p", s.min_p, 0, 1));
  ATELIER_RETURN_IF_ERROR(CheckRange("frequency_penalty", s.frequency_penalty, -2, 2));
  ATELIER_RETURN_IF_ERROR(CheckRange("presence_penalty", s.presence_penalty, -2, 2));
  if (!(s.repetition_penalty > 0 && s.repetition_penalty <= 2)) {
    return Bad("repetition_penalty", absl::StrCat(s.repetition_penalty), "in (0, 2]");
  }
  for (const auto& [token, bias] : s.logit_bias) {
    ATELIER_RETURN_IF_ERROR(CheckToken("logit_bias", token, vocab_size));
    if (!std::isfinite(bias)) {
      return Bad(absl::StrCat("logit_bias[", token, "]"), absl::StrCat(bias), "finite");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLengths(const SamplingOptions& s, int vocab_size) {
  if (s.max_new_tokens.value_or(0) < 0) {
    return Bad("max_new_tokens", absl::StrCat(*s.max_new_tokens), ">= 0");
  }
  if (s.min_new_tokens < 0) return Bad("min_new_tokens", absl::StrCat(s.min_new_tokens), ">= 0");
  if (s.max_new_tokens && s.min_new_tokens > *s.max_new_tokens) {
    return Bad("min_new_tokens", absl::StrCat(s.min_new_tokens),
               absl::StrCat("at most max_new_tokens=", *s.max_new_tokens));
  }
  for (const int32_t token : s.stop_token_ids) {
    ATELIER_RETURN_IF_ERROR(CheckToken("stop_token_ids", token, vocab_size));
  }
  const std::set<int32_t> stops(s.stop_token_ids.begin(), s.stop_token_ids.end());
  if (s.min_new_tokens > 0 && stops.size() == static_cast<size_t>(vocab_size)) {
    return Bad("min_new_tokens", absl::StrCat(s.min_new_tokens),
               "0 where stop_token_ids are the whole vocabulary");
  }
  if (s.n < 1 || s.n > kMaxSequencesPerRequest) {
    return Bad("n", absl::StrCat(s.n), absl::StrCat("in [1, ", kMaxSequencesPerRequest, "]"));
  }
  return absl::OkStatus();
}

absl::Status CheckLogprobs(const GenerateRequest& request, int vocab_size) {
  const LogprobOptions& l = request.logprobs;
  if (l.top < 0 || l.top > vocab_size) {
    return Bad("logprobs.top", absl::StrCat(l.top), absl::StrCat("in [0, ", vocab_size, "]"));
  }
  if (l.prompt_start < -1 || l.prompt_start >= static_cast<int>(request.prompt.size())) {
    return Bad("logprobs.prompt_start", absl::StrCat(l.prompt_start),
               absl::StrCat("-1 or a prompt position in [0, ", request.prompt.size(), ")"));
  }
  if (!l.token_ids.empty()) {
    return absl::UnimplementedError(
        "logprobs.token_ids: log-probabilities of given tokens are "
        "not supported; ask for logprobs.top");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateRequest(const GenerateRequest& request, const RequestLimits& limits) {
  if (request.id.empty()) return absl::InvalidArgumentError("id: must not be empty");
  ATELIER_RETURN_IF_ERROR(CheckDistribution(request.sampling, limits.vocab_size));
  ATELIER_RETURN_IF_ERROR(CheckLengths(request.sampling, limits.vocab_size));
  ATELIER_RETURN_IF_ERROR(CheckPrompt(request, limits));
  return CheckLogprobs(request, limits.vocab_size);
}

int MaxNewTokens(const GenerateRequest& request, const RequestLimits& limits) {
  const int room = limits.max_sequence_tokens() - static_cast<int>(request.prompt.size());
  const int default_max = limits.max_new_tokens_default > 0 ? limits.max_new_tokens_default : room;
  return std::min(room, request.sampling.max_new_tokens.value_or(default_max));
}

}  // namespace atelier
