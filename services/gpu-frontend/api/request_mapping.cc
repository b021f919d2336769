#include "services/gpu-frontend/api/request_mapping.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "libs/base/quoted.h"
#include "libs/base/status_macros.h"

namespace atelier {
namespace {

namespace wire = ::sglang::grpc::scheduler;

constexpr uint32_t kMaxInt = static_cast<uint32_t>(std::numeric_limits<int32_t>::max());
// As many as the OpenAI API allows; state is kept for each from the start.
constexpr uint32_t kMaxSequences = 128;
// It is in every message of the answer and in log lines; the gateway's have some 45 bytes.
constexpr size_t kMaxRequestIdBytes = 512;
constexpr char kSeedKey[] = "seed";
constexpr double kMaxSeed = 0x1p53;

template <typename... Args>
absl::Status Invalid(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

absl::Status Unsupported(absl::string_view field, absl::string_view what) {
  return Invalid(field, ": this server does not support ", what, "; leave the field out");
}

absl::Status CheckConstraint(const wire::SamplingParams& params) {
  const char* field = nullptr;
  switch (params.constraint_case()) {
    case wire::SamplingParams::kRegex:
      field = "regex";
      break;
    case wire::SamplingParams::kJsonSchema:
      field = "json_schema";
      break;
    case wire::SamplingParams::kEbnfGrammar:
      field = "ebnf_grammar";
      break;
    case wire::SamplingParams::kStructuralTag:
      field = "structural_tag";
      break;
    case wire::SamplingParams::CONSTRAINT_NOT_SET:
      return absl::OkStatus();
  }
  return Invalid("sampling_params.", field,
                 ": constrained decoding is not supported, so response_format and a required "
                 "tool_choice cannot be honoured; use tool_choice \"auto\" or \"none\"");
}

absl::Status CheckSupported(const wire::GenerateRequest& request) {
  if (request.has_mm_inputs() && request.mm_inputs().ByteSizeLong() > 0) {
    return Unsupported("mm_inputs", "images, video or audio");
  }
  if (request.input_embeds_size() > 0) return Unsupported("input_embeds", "embeddings as input");
  if (request.return_hidden_states()) return Unsupported("return_hidden_states", "hidden states");
  if (request.has_disaggregated_params()) {
    return Unsupported("disaggregated_params", "separate prefill and decode servers");
  }
  if (!request.custom_logit_processor().empty()) {
    return Unsupported("custom_logit_processor", "custom logit processors");
  }
  if (!request.lora_id().empty()) return Unsupported("lora_id", "LoRA adapters");
  if (request.token_ids_logprob_size() > 0) {
    return Unsupported("token_ids_logprob", "log probabilities of chosen token ids");
  }
  if (request.data_parallel_rank() > 0) {
    return Invalid("data_parallel_rank=", request.data_parallel_rank(),
                   ": there is one rank, number 0");
  }
  const wire::SamplingParams& params = request.sampling_params();
  for (const auto& [key, value] : params.custom_params().fields()) {
    if (key == kSeedKey) continue;
    return Unsupported(absl::StrCat("sampling_params.custom_params.", key),
                       "custom sampling parameters other than seed");
  }
  return CheckConstraint(params);
}

// Sampling's seed has no field of its own on this wire. Numbers of a Struct are doubles, so it is a
// whole number that a double holds exactly.
absl::Status MapSeed(const wire::SamplingParams& params, SamplingOptions* options) {
  const auto found = params.custom_params().fields().find(kSeedKey);
  if (found == params.custom_params().fields().end()) return absl::OkStatus();
  const double seed = found->second.number_value();
  if (found->second.kind_case() != google::protobuf::Value::kNumberValue || !(seed >= 0) ||
      seed > kMaxSeed || seed != std::floor(seed)) {
    return Invalid("sampling_params.custom_params.seed is no whole number of 0 to 2^53");
  }
  options->seed = static_cast<uint64_t>(seed);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> MapTokenIds(
    absl::string_view field, const google::protobuf::RepeatedField<uint32_t>& ids) {
  std::vector<int32_t> result;
  result.reserve(static_cast<size_t>(ids.size()));
  for (const uint32_t id : ids) {
    if (id > kMaxInt) return Invalid(field, ": token id ", id, " is outside every vocabulary");
    result.push_back(static_cast<int32_t>(id));
  }
  return result;
}

absl::StatusOr<std::vector<int32_t>> MapPrompt(const wire::GenerateRequest& request,
                                               const MappingLimits& limits) {
  if (!request.has_tokenized()) {
    return Invalid("tokenized is missing: token ids are what this service takes");
  }
  if (request.tokenized().input_ids_size() > 0) {
    return MapTokenIds("tokenized.input_ids", request.tokenized().input_ids());
  }
  if (limits.bos_token_id < 0) {
    return Invalid(
        "tokenized.input_ids is empty, and the model has no beginning-of-sequence token to start "
        "from");
  }
  return std::vector<int32_t>{static_cast<int32_t>(limits.bos_token_id)};
}

absl::StatusOr<int> MapCount(absl::string_view field, uint32_t value) {
  if (value > kMaxInt) return Invalid(field, "=", value, " exceeds ", kMaxInt);
  return static_cast<int>(value);
}

absl::Status MapLogitBias(const wire::SamplingParams& params, SamplingOptions* options) {
  for (const auto& [key, bias] : params.logit_bias()) {
    int32_t token = 0;
    // One way to write each id: " 5" and "05" beside "5" would leave its bias to chance.
    if (!absl::SimpleAtoi(key, &token) || token < 0 || absl::StrCat(token) != key) {
      return Invalid("sampling_params.logit_bias: key ", Quoted(key), " is not a token id");
    }
    options->logit_bias[token] = bias;
  }
  return absl::OkStatus();
}

absl::StatusOr<SamplingOptions> MapSampling(const wire::SamplingParams& params) {
  SamplingOptions options;
  options.temperature = params.temperature();
  options.top_k = params.top_k();
  if (params.top_p() != 0) options.top_p = params.top_p();
  options.min_p = params.min_p();
  options.frequency_penalty = params.frequency_penalty();
  options.presence_penalty = params.presence_penalty();
  if (params.repetition_penalty() != 0) options.repetition_penalty = params.repetition_penalty();
  options.ignore_eos = params.ignore_eos();
  if (params.has_max_new_tokens()) {
    ATELIER_ASSIGN_OR_RETURN(options.max_new_tokens,
                             MapCount("sampling_params.max_new_tokens", params.max_new_tokens()));
  }
  ATELIER_ASSIGN_OR_RETURN(options.min_new_tokens,
                           MapCount("sampling_params.min_new_tokens", params.min_new_tokens()));
  if (params.n() > kMaxSequences) {
    return Invalid("sampling_params.n=", params.n(), " exceeds ", kMaxSequences);
  }
  options.n = static_cast<int>(std::max(params.n(), 1u));
  ATELIER_ASSIGN_OR_RETURN(options.stop_token_ids,
                           MapTokenIds("sampling_params.stop_token_ids", params.stop_token_ids()));
  ATELIER_RETURN_IF_ERROR(MapLogitBias(params, &options));
  ATELIER_RETURN_IF_ERROR(MapSeed(params, &options));
  return options;
}

absl::StatusOr<LogprobOptions> MapLogprobs(const wire::GenerateRequest& request) {
  LogprobOptions options;
  if (request.top_logprobs_num() < 0) {
    return Invalid("top_logprobs_num=", request.top_logprobs_num(), " is negative");
  }
  if (!request.return_logprob()) return options;
  options.enabled = true;
  options.top = request.top_logprobs_num();
  options.prompt_start = std::max(request.logprob_start_len(), -1);
  return options;
}

// Log probabilities of the prompt travel in one message.
absl::Status FitPromptLogprobs(const MappedRequest& mapped, size_t tokens, size_t capacity) {
  if (tokens <= capacity) return absl::OkStatus();
  const LogprobOptions& logprobs = mapped.request.logprobs;
  return Invalid("logprob_start_len=", logprobs.prompt_start, ": log probabilities of ", tokens,
                 " prompt tokens do not fit a response (at most ", capacity,
                 " with top_logprobs_num=", logprobs.top, ")");
}

// Bounds log probabilities before any work is done: those of the prompt, and those of an answer
// that isn't streamed, by one message; those of a stream by what is kept for a reader that does
// not read.
absl::Status FitLogprobs(const MappingLimits& limits, MappedRequest* mapped) {
  const LogprobOptions& logprobs = mapped->request.logprobs;
  if (!logprobs.enabled) return absl::OkStatus();
  SamplingOptions& sampling = mapped->request.sampling;
  const size_t per_token = LogprobBytes(static_cast<size_t>(logprobs.top));
  size_t capacity = limits.max_response_bytes / per_token;
  const size_t prompt = mapped->request.prompt.size();
  if (logprobs.prompt_start >= 0) {
    const size_t start = std::min(static_cast<size_t>(logprobs.prompt_start), prompt);
    ATELIER_RETURN_IF_ERROR(FitPromptLogprobs(*mapped, prompt - start, capacity));
    capacity -= prompt - start;
  }
  if (mapped->stream) {
    capacity = limits.max_backlog_bytes / per_token / static_cast<size_t>(sampling.n);
  }
  const int fitting = static_cast<int>(std::min<size_t>(capacity, kMaxInt));
  if (!sampling.max_new_tokens.has_value()) {
    const int room = std::max(limits.max_context - static_cast<int>(prompt), 0);
    if (fitting < room) sampling.max_new_tokens = fitting;
    return absl::OkStatus();
  }
  if (std::min(*sampling.max_new_tokens, limits.max_context) <= fitting) return absl::OkStatus();
  return Invalid("sampling_params.max_new_tokens=", *sampling.max_new_tokens,
                 ": log probabilities of more than ", fitting, " tokens do not fit one ",
                 mapped->stream ? "stream; " : "response; stream, or ",
                 "ask for fewer top_logprobs_num (", logprobs.top, ")");
}

}  // namespace

absl::StatusOr<MappedRequest> MapGenerateRequest(const wire::GenerateRequest& request,
                                                 const MappingLimits& limits) {
  if (request.request_id().empty()) {
    return Invalid("request_id is empty: give every request an id of its own");
  }
  if (request.request_id().size() > kMaxRequestIdBytes) {
    return Invalid("request_id has ", request.request_id().size(), " bytes, at most ",
                   kMaxRequestIdBytes, " are taken");
  }
  ATELIER_RETURN_IF_ERROR(CheckSupported(request));
  MappedRequest mapped;
  mapped.stream = request.stream();
  mapped.stream_interval = limits.stream_interval;
  if (request.sampling_params().has_stream_interval()) {
    mapped.stream_interval = std::max(request.sampling_params().stream_interval(), 1);
  }
  mapped.request.id = request.request_id();
  ATELIER_ASSIGN_OR_RETURN(mapped.request.prompt, MapPrompt(request, limits));
  ATELIER_ASSIGN_OR_RETURN(mapped.request.sampling, MapSampling(request.sampling_params()));
  ATELIER_ASSIGN_OR_RETURN(mapped.request.logprobs, MapLogprobs(request));
  ATELIER_RETURN_IF_ERROR(FitLogprobs(limits, &mapped));
  return mapped;
}

}  // namespace atelier
