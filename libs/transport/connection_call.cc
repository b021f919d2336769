#include "libs/transport/connection_call.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace atelier {

ConnectionCall::ConnectionCall(std::shared_ptr<const GrpcEncodedForward> request,
                               absl::Time deadline, WorkerConnection::DoneCallback done)
    : request_(std::move(request)), deadline_(deadline), done_(std::move(done)) {}

void ConnectionCall::Expect(std::shared_ptr<const WorkerDescription> described,
                            std::vector<int> shards, int num_parts) {
  described_ = std::move(described);
  shards_ = std::move(shards);
  num_parts_ = num_parts;
}

ExpectedSums ConnectionCall::ExpectedOf(int row_begin, int row_end) const {
  return {shards_, row_end - row_begin, request_->hidden_size(), request_->output_dtype()};
}

bool ConnectionCall::AddPart(int row_begin, int row_end, ForwardReply part) {
  if (!part.status.ok()) {
    Answer(std::move(part));
    return false;
  }
  ForwardReply whole;
  {
    absl::MutexLock lock(&mutex_);
    if (state_ != State::kPending) return false;
    if (row_end - row_begin == request_->num_tokens()) {
      reply_ = std::move(part);
    } else {
      MergeLocked(row_begin, std::move(part));
    }
    if (++parts_answered_ < num_parts_) return true;
    whole = std::move(reply_);
  }
  whole.described = described_;
  Answer(std::move(whole));
  return true;
}

void ConnectionCall::MergeLocked(int row_begin, ForwardReply part) {
  const size_t row_bytes =
      static_cast<size_t>(request_->hidden_size()) * DTypeBytes(request_->output_dtype());
  if (reply_.sums.empty()) {
    for (const int shard : shards_) {
      reply_.sums.push_back(
          {shard, std::string(row_bytes * static_cast<size_t>(request_->num_tokens()), '\0')});
    }
  }
  for (size_t i = 0; i < shards_.size(); ++i) {
    std::memcpy(reply_.sums[i].data.data() + static_cast<size_t>(row_begin) * row_bytes,
                part.sums[i].data.data(), part.sums[i].data.size());
  }
  reply_.queued = std::max(reply_.queued, part.queued);
  reply_.computed += part.computed;
  reply_.non_finite_tokens += part.non_finite_tokens;
}

void ConnectionCall::Fail(const absl::Status& status) {
  ForwardReply reply;
  reply.status = status;
  Answer(std::move(reply));
}

void ConnectionCall::Answer(ForwardReply reply) {
  WorkerConnection::DoneCallback done;
  {
    absl::MutexLock lock(&mutex_);
    if (state_ != State::kPending) return;
    state_ = State::kAnswering;
    answering_ = std::this_thread::get_id();
    done = std::move(done_);
  }
  done(std::move(reply));
  // What the callback captured goes before an Abandon that waits for it returns.
  done = nullptr;
  absl::MutexLock lock(&mutex_);
  state_ = State::kOver;
}

void ConnectionCall::Abandon() {
  absl::MutexLock lock(&mutex_);
  if (state_ == State::kPending) {
    state_ = State::kOver;
    done_ = nullptr;
    return;
  }
  if (state_ == State::kAnswering && answering_ != std::this_thread::get_id()) {
    mutex_.Await(absl::Condition(
        +[](State* state) { return *state == State::kOver; }, &state_));
  }
}

bool ConnectionCall::IsOver() const {
  absl::MutexLock lock(&mutex_);
  return state_ == State::kOver;
}

}  // namespace atelier
