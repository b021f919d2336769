#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "proto/compat/sglang_scheduler.pb.h"
#include "services/gpu-frontend/api/request_mapping.h"
#include "services/gpu-frontend/engine/request.h"

namespace atelier {

struct ResponseOptions {
  std::string request_id;
  int n = 1;            // sequences
  bool stream = false;  // chunks and completes, or completes alone
  int stream_interval = 1;
  bool logprobs = false;
  size_t max_message_bytes = kMaxResponseBytes;
};

// Turns the deltas of one request into the messages that the gateway expects:
//  - streaming: chunks of new tokens with cumulative counts, then one complete per sequence;
//  - otherwise one complete per sequence with everything in it;
//  - completes in the order of their index (the gateway numbers choices by arrival).
// What a slow reader has not taken yet is merged, so memory is bounded by what the request
// generates and catching up takes few messages; none exceeds max_message_bytes. Not thread-safe.
class ResponseStream {
 public:
  explicit ResponseStream(ResponseOptions options);

  void Add(TokenDelta delta);
  // Writes the next message; false when none can be sent now.
  bool Next(sglang::grpc::scheduler::GenerateResponse* message);
  // Every sequence has ended, as far as the engine is concerned.
  bool ended() const { return num_ended_ == sequences_.size(); }
  // Every message has been handed out.
  bool done() const { return next_complete_ == sequences_.size(); }

 private:
  struct Sequence {
    std::vector<int32_t> tokens;
    size_t num_sent = 0;                 // of `tokens`, in chunks
    std::vector<TokenLogprob> logprobs;  // of tokens not sent yet
    int prompt_tokens = 0;
    int completion_tokens = 0;
    int cached_tokens = 0;
    std::optional<FinishReason> finish;
    std::optional<int32_t> matched_token;
  };

  bool HasChunk(size_t index) const;
  void FillChunk(size_t index, sglang::grpc::scheduler::GenerateStreamChunk* chunk);
  void FillComplete(size_t index, sglang::grpc::scheduler::GenerateComplete* complete);

  ResponseOptions options_;
  std::vector<Sequence> sequences_;
  std::vector<TokenLogprob> prompt_logprobs_;
  bool prompt_logprobs_sent_ = false;  // in a chunk
  size_t num_ended_ = 0;
  size_t next_chunk_ = 0;     // where the search for a sequence with new tokens starts
  size_t next_complete_ = 0;  // the sequence whose complete comes next
};

}  // namespace atelier
