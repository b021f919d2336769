#include "services/gpu-frontend/api/response_stream.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/types/span.h"

namespace atelier {
namespace {

namespace wire = ::sglang::grpc::scheduler;

const char* FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
  }
  return "abort";
}

void FillTop(const TokenLogprob& token, wire::TopLogProbs* top) {
  for (const auto& [id, logprob] : token.top) {
    top->add_values(logprob);
    top->add_token_ids(static_cast<uint32_t>(id));
  }
}

void FillOutput(absl::Span<const TokenLogprob> tokens, wire::OutputLogProbs* out) {
  for (const TokenLogprob& token : tokens) {
    out->add_token_logprobs(token.logprob.value_or(0.0f));
    out->add_token_ids(static_cast<uint32_t>(token.token));
    FillTop(token, out->add_top_logprobs());
  }
}

void FillInput(absl::Span<const TokenLogprob> tokens, wire::InputLogProbs* out) {
  for (const TokenLogprob& token : tokens) {
    wire::InputTokenLogProb* logprob = out->add_token_logprobs();
    if (token.logprob.has_value()) logprob->set_value(*token.logprob);
    out->add_token_ids(static_cast<uint32_t>(token.token));
    FillTop(token, out->add_top_logprobs());
  }
}

// How many of `tokens` fit `budget` bytes; at least one, so that sending always advances.
size_t FittingTokens(absl::Span<const TokenLogprob> tokens, size_t budget) {
  size_t count = 0;
  size_t bytes = 0;
  for (const TokenLogprob& token : tokens) {
    bytes += LogprobBytes(token.top.size());
    if (bytes > budget && count > 0) break;
    ++count;
  }
  return count;
}

template <typename T>
void Append(std::vector<T>&& from, std::vector<T>* to) {
  to->insert(to->end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

template <typename Message, typename Sequence>
void FillCounts(const Sequence& sequence, size_t index, Message* message) {
  message->set_index(static_cast<uint32_t>(index));
  message->set_prompt_tokens(static_cast<uint32_t>(sequence.prompt_tokens));
  message->set_cached_tokens(static_cast<uint32_t>(sequence.cached_tokens));
}

}  // namespace

ResponseStream::ResponseStream(ResponseOptions options)
    : options_(std::move(options)), sequences_(static_cast<size_t>(options_.n)) {}

void ResponseStream::Add(TokenDelta delta) {
  Sequence& sequence = sequences_[static_cast<size_t>(delta.index)];
  Append(std::move(delta.tokens), &sequence.tokens);
  if (options_.logprobs) Append(std::move(delta.logprobs), &sequence.logprobs);
  if (!delta.prompt_logprobs.empty()) prompt_logprobs_ = std::move(delta.prompt_logprobs);
  sequence.prompt_tokens = delta.prompt_tokens;
  sequence.completion_tokens = delta.completion_tokens;
  sequence.cached_tokens = delta.cached_tokens;
  if (!delta.finish.has_value()) return;
  sequence.finish = delta.finish;
  sequence.matched_token = delta.matched_token;
  ++num_ended_;
}

bool ResponseStream::HasChunk(size_t index) const {
  const Sequence& sequence = sequences_[index];
  if (index == 0 && !prompt_logprobs_.empty() && !prompt_logprobs_sent_) return true;
  const size_t pending = sequence.tokens.size() - sequence.num_sent;
  if (pending == 0) return false;
  // The first token is what a waiting user sees first; only later ones are gathered.
  return sequence.num_sent == 0 || sequence.finish.has_value() ||
         pending >= static_cast<size_t>(options_.stream_interval);
}

bool ResponseStream::Next(wire::GenerateResponse* message) {
  message->Clear();
  message->set_request_id(options_.request_id);
  if (options_.stream) {
    for (size_t i = 0; i < sequences_.size(); ++i) {
      const size_t index = (next_chunk_ + i) % sequences_.size();
      if (!HasChunk(index)) continue;
      next_chunk_ = index + 1;
      FillChunk(index, message->mutable_chunk());
      return true;
    }
  }
  if (done() || !sequences_[next_complete_].finish.has_value()) return false;
  FillComplete(next_complete_, message->mutable_complete());
  ++next_complete_;
  return true;
}

void ResponseStream::FillChunk(size_t index, wire::GenerateStreamChunk* chunk) {
  Sequence& sequence = sequences_[index];
  size_t budget = options_.max_message_bytes;
  if (index == 0 && !prompt_logprobs_.empty() && !prompt_logprobs_sent_) {
    FillInput(prompt_logprobs_, chunk->mutable_input_logprobs());
    prompt_logprobs_sent_ = true;
    budget -= std::min(budget, chunk->ByteSizeLong());
  }
  size_t count = std::min(sequence.tokens.size() - sequence.num_sent, budget / LogprobBytes(0));
  if (options_.logprobs) {
    const absl::Span<const TokenLogprob> pending = sequence.logprobs;
    count = std::min(count, FittingTokens(pending, budget));
    FillOutput(pending.subspan(0, count), chunk->mutable_output_logprobs());
    sequence.logprobs.erase(
        sequence.logprobs.begin(),
        sequence.logprobs.begin() + static_cast<std::ptrdiff_t>(std::min(count, pending.size())));
  }
  for (size_t i = 0; i < count; ++i) {
    chunk->add_token_ids(static_cast<uint32_t>(sequence.tokens[sequence.num_sent + i]));
  }
  sequence.num_sent += count;
  FillCounts(sequence, index, chunk);
  chunk->set_completion_tokens(static_cast<uint32_t>(sequence.num_sent));
}

void ResponseStream::FillComplete(size_t index, wire::GenerateComplete* complete) {
  const Sequence& sequence = sequences_[index];
  for (const int32_t token : sequence.tokens) {
    complete->add_output_ids(static_cast<uint32_t>(token));
  }
  complete->set_finish_reason(FinishReasonName(*sequence.finish));
  FillCounts(sequence, index, complete);
  complete->set_completion_tokens(static_cast<uint32_t>(sequence.completion_tokens));
  if (sequence.matched_token.has_value()) {
    complete->set_matched_token_id(static_cast<uint32_t>(*sequence.matched_token));
  }
  if (options_.stream || !options_.logprobs) return;
  FillOutput(sequence.logprobs, complete->mutable_output_logprobs());
  if (!prompt_logprobs_.empty()) FillInput(prompt_logprobs_, complete->mutable_input_logprobs());
}

}  // namespace atelier
