#include "services/expert-worker/batcher.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace atelier {

absl::Status Batcher::Add(QueuedCall&& call) {
  const int tokens = call.request.batch.num_tokens;
  if (queue_.size() >= static_cast<size_t>(options_.max_queued_calls)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the queue is full: max_queued_calls=", options_.max_queued_calls, " calls are waiting"));
  }
  // An empty queue takes any call: a call that the other limits allow must be able to run.
  if (!queue_.empty() && queued_tokens_ + tokens > options_.max_queued_tokens) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the queue is full: ", queued_tokens_, " tokens are waiting, num_tokens=", tokens,
        " more would exceed max_queued_tokens=", options_.max_queued_tokens));
  }
  queued_tokens_ += tokens;
  queue_.push_back(std::move(call));
  return absl::OkStatus();
}

Batcher::Batch Batcher::Take() {
  Batch batch;
  DropEnded(batch);
  const auto leader = ChooseLeader();
  if (leader == queue_.end()) return batch;
  const int layer = leader->request.layer;
  const bool led_by_prefill = leader->IsPrefill();
  // The leader's tokens count first, so that it is in the batch whatever else fits.
  const int64_t leader_tokens = leader->request.batch.num_tokens;
  int64_t tokens = leader_tokens;
  const auto joins = [&](const QueuedCall& call) {
    // Rows of a prefill would make a decode batch slow; a prefill batch takes decode calls along.
    if (call.request.layer != layer || (call.IsPrefill() && !led_by_prefill)) return false;
    if (tokens + call.request.batch.num_tokens > options_.max_batch_tokens) return false;
    tokens += call.request.batch.num_tokens;
    return true;
  };
  std::deque<QueuedCall> rest;
  for (auto call = queue_.begin(); call != queue_.end(); ++call) {
    const bool taken = call == leader || joins(*call);
    if (taken) {
      batch.calls.push_back(std::move(*call));
    } else {
      rest.push_back(std::move(*call));
    }
  }
  queue_ = std::move(rest);
  queued_tokens_ -= tokens;
  return batch;
}

std::vector<QueuedCall> Batcher::TakeAll() {
  std::vector<QueuedCall> all(std::make_move_iterator(queue_.begin()),
                              std::make_move_iterator(queue_.end()));
  queue_.clear();
  queued_tokens_ = 0;
  return all;
}

void Batcher::DropEnded(Batch& batch) {
  const absl::Time now = clock_.Now();
  const auto end_of = [&](const QueuedCall& call) {
    if (call.context->Cancelled()) return absl::CancelledError("the caller has gone");
    if (call.request.deadline > now) return absl::OkStatus();
    return absl::DeadlineExceededError(absl::StrCat(
        "the deadline passed after ", absl::FormatDuration(now - call.received), " in the queue"));
  };
  std::deque<QueuedCall> live;
  for (QueuedCall& call : queue_) {
    absl::Status status = end_of(call);
    if (status.ok()) {
      live.push_back(std::move(call));
    } else {
      queued_tokens_ -= call.request.batch.num_tokens;
      batch.dropped.push_back({std::move(call), std::move(status)});
    }
  }
  queue_ = std::move(live);
}

std::deque<QueuedCall>::const_iterator Batcher::FirstOf(CallPriority priority) const {
  return std::find_if(queue_.begin(), queue_.end(),
                      [&](const QueuedCall& call) { return call.request.priority == priority; });
}

std::deque<QueuedCall>::const_iterator Batcher::ChooseLeader() {
  const auto decode = FirstOf(CallPriority::kDecode);
  const auto prefill = FirstOf(CallPriority::kPrefill);
  const bool overtake =
      decode != queue_.end() && prefill != queue_.end() && overtakes_ < options_.max_overtakes;
  overtakes_ = overtake ? overtakes_ + 1 : 0;
  if (overtake || prefill == queue_.end()) return decode;
  return prefill;
}

}  // namespace atelier
