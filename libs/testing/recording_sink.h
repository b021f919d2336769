#pragma once

#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"
#include "services/gpu-frontend/engine/request.h"

namespace atelier::testing {

// What a sink received for one of a request's sequences, put together.
struct RecordedSequence {
  std::vector<int32_t> tokens;
  std::vector<TokenLogprob> logprobs;
  std::vector<TokenLogprob> prompt_logprobs;
  TokenDelta last;
  int num_deltas = 0;
};

// Keeps a request's events and fails the test on one that breaks RequestSink's contract.
// Thread-safe.
class RecordingSink final : public RequestSink {
 public:
  explicit RecordingSink(int n = 1) : num_expected_(n) {}

  void OnDelta(TokenDelta delta) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_FALSE(ended()) << "a delta after the end";
    RecordedSequence& s = sequences_[delta.index];
    EXPECT_FALSE(s.last.finish.has_value()) << "a delta after the last, index " << delta.index;
    EXPECT_GE(delta.completion_tokens, s.last.completion_tokens);
    s.tokens.insert(s.tokens.end(), delta.tokens.begin(), delta.tokens.end());
    s.logprobs.insert(s.logprobs.end(), delta.logprobs.begin(), delta.logprobs.end());
    s.prompt_logprobs.insert(s.prompt_logprobs.end(), delta.prompt_logprobs.begin(),
                             delta.prompt_logprobs.end());
    if (delta.finish) ++num_finished_;
    ++s.num_deltas;
    s.last = std::move(delta);
  }

  void OnError(absl::Status status) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_FALSE(ended()) << "an error after the end";
    EXPECT_FALSE(status.ok());
    error_ = std::move(status);
  }

  bool Ended() const {
    absl::MutexLock lock(&mutex_);
    return ended();
  }
  void WaitUntilEnded() const {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &RecordingSink::ended));
  }
  void WaitForDeltas(int num, int index = 0) const {
    absl::MutexLock lock(&mutex_);
    const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      const auto it = sequences_.find(index);
      return ended() || (it != sequences_.end() && it->second.num_deltas >= num);
    };
    mutex_.Await(absl::Condition(&enough));
  }
  absl::Status error() const {
    absl::MutexLock lock(&mutex_);
    return error_;
  }
  RecordedSequence sequence(int index = 0) const {
    absl::MutexLock lock(&mutex_);
    const auto it = sequences_.find(index);
    return it == sequences_.end() ? RecordedSequence{} : it->second;
  }

 private:
  bool ended() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return num_finished_ == num_expected_ || !error_.ok();
  }

  const int num_expected_;
  mutable absl::Mutex mutex_;
  std::map<int, RecordedSequence> sequences_ ABSL_GUARDED_BY(mutex_);
  int num_finished_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace atelier::testing
