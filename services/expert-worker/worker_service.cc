#include "services/expert-worker/worker_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/base/check.h"
#include "libs/base/status_macros.h"
#include "services/expert-worker/request_checks.h"

namespace atelier {
namespace {

constexpr int kNumStatusCodes = static_cast<int>(absl::StatusCode::kUnauthenticated) + 1;

ForwardReply Failed(absl::Status status) {
  ForwardReply reply;
  reply.status = std::move(status);
  return reply;
}

}  // namespace

WorkerService::WorkerService(Served served, const BatcherOptions& batching,
                             const Dependencies& dependencies)
    : description_(std::move(served.description)),
      skipped_(std::move(served.skipped)),
      lifecycle_(dependencies.lifecycle),
      metrics_(dependencies.metrics),
      clock_(dependencies.clock),
      batcher_(batching, dependencies.clock),
      load_counter_(description_.shards, std::move(served.expert_bytes), description_.num_experts),
      sum_buffers_(description_.shards.size()),
      sums_(description_.shards.size()) {
  // All series exist from the start, so a rate over the first error is seen, and no call pays for
  // the look-up.
  for (int code = 0; code < kNumStatusCodes; ++code) {
    const std::string name = absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
    calls_by_code_.push_back(&metrics_.CallsWith(name));
  }
}

WorkerService::~WorkerService() { Stop(); }

void WorkerService::Serve(Executor& executor, std::function<void()> thread_started) {
  ATELIER_CHECK(!thread_.joinable());
  thread_ = std::thread([this, &executor, started = std::move(thread_started)] {
    if (started) started();
    Run(executor);
  });
  lifecycle_.Advance(WorkerState::kServing);
}

void WorkerService::Stop() {
  std::vector<QueuedCall> left;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    left = batcher_.TakeAll();
  }
  for (QueuedCall& call : left) {
    Answer(call, Failed(absl::UnavailableError("the worker stops before this call was started")));
  }
  if (thread_.joinable()) thread_.join();
}

WorkerDescription WorkerService::Describe() const {
  WorkerDescription description = description_;
  description.state = lifecycle_.state();
  return description;
}

void WorkerService::Forward(ForwardRequest request, std::shared_ptr<const CallContext> context,
                            std::function<void(ForwardReply)> reply) {
  QueuedCall call{std::move(request), std::move(context), std::move(reply), clock_.Now()};
  absl::Status status = lifecycle_.Ready();
  if (status.ok()) status = CheckRequest(call.request, description_);
  if (status.ok()) status = CheckNotSkipped(call.request, description_, skipped_);
  if (status.ok() && call.request.batch.num_tokens > 0) {
    status = Enqueue(call);
    if (status.ok()) return;
  }
  ForwardReply answer = Failed(std::move(status));
  if (answer.status.ok()) answer.sums = EmptySums(call.request.layer);
  calls_by_code_[static_cast<size_t>(answer.status.code())]->Increment();
  call.reply(std::move(answer));
}

void WorkerService::OnRefused(const absl::Status& status) {
  calls_by_code_[static_cast<size_t>(status.code())]->Increment();
}

absl::Status WorkerService::Enqueue(QueuedCall& call) {
  const double tokens = call.request.batch.num_tokens;
  absl::MutexLock lock(&mutex_);
  if (stopping_) return absl::UnavailableError("the worker is stopping");
  // Again, under the lock: a drain that began since has to see either the call or its refusal.
  ATELIER_RETURN_IF_ERROR(lifecycle_.Ready());
  ATELIER_RETURN_IF_ERROR(batcher_.Add(std::move(call)));
  ++in_flight_;
  metrics_.tokens.Increment(tokens);
  metrics_.queue_depth.Set(static_cast<double>(batcher_.num_calls()));
  return absl::OkStatus();
}

absl::StatusOr<int64_t> WorkerService::Drain(absl::Time deadline) {
  lifecycle_.Advance(WorkerState::kDraining);
  const absl::Duration patience = std::max(deadline - clock_.Now(), absl::ZeroDuration());
  absl::MutexLock lock(&mutex_);
  const int64_t before = finished_;
  if (mutex_.AwaitWithTimeout(absl::Condition(this, &WorkerService::Idle), patience)) {
    return finished_ - before;
  }
  return absl::DeadlineExceededError(absl::StrCat(in_flight_, " calls are still in flight after ",
                                                  absl::FormatDuration(patience), " of draining"));
}

void WorkerService::Run(Executor& executor) {
  for (;;) {
    Batcher::Batch batch = NextBatch();
    for (Batcher::Batch::Dropped& dropped : batch.dropped) {
      metrics_.dropped_calls.Increment();
      Answer(dropped.call, Failed(std::move(dropped.status)));
    }
    if (!batch.calls.empty()) {
      Compute(executor, std::move(batch.calls));
    } else if (batch.dropped.empty()) {
      return;
    }
  }
}

Batcher::Batch WorkerService::NextBatch() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &WorkerService::HasWorkOrStops));
  Batcher::Batch batch = batcher_.Take();
  metrics_.queue_depth.Set(static_cast<double>(batcher_.num_calls()));
  return batch;
}

void WorkerService::Compute(Executor& executor, std::vector<QueuedCall> calls) {
  const absl::Time start = clock_.Now();
  const LayerBatch batch = merger_.Merge(calls);
  const size_t floats =
      static_cast<size_t>(batch.tokens.num_tokens) * static_cast<size_t>(batch.tokens.hidden_size);
  for (size_t shard = 0; shard < sums_.size(); ++shard) {
    sums_[shard] = sum_buffers_[shard].Reserve(floats);
  }
  const int non_finite = executor.Forward(batch, sums_);
  const absl::Duration computed = clock_.Now() - start;
  metrics_.non_finite_tokens.Increment(non_finite);
  CountBatch(calls, batch, start);
  int row_begin = 0;
  for (QueuedCall& call : calls) {
    ForwardReply reply = ReplyTo(call, row_begin, non_finite > 0);
    reply.queued = start - call.received;
    reply.computed = computed;
    row_begin += call.request.batch.num_tokens;
    Answer(call, std::move(reply));
  }
}

ForwardReply WorkerService::ReplyTo(const QueuedCall& call, int row_begin,
                                    bool any_non_finite) const {
  const ForwardRequest& request = call.request;
  const int rows = request.batch.num_tokens;
  const int hidden = request.batch.hidden_size;
  ForwardReply reply;
  std::vector<float*> held;
  for (size_t shard = 0; shard < sums_.size(); ++shard) {
    if (!HoldsLayer(shard, request.layer)) continue;
    held.push_back(sums_[shard]);
    reply.sums.push_back({static_cast<int>(shard),
                          EncodeSums(sums_[shard], row_begin, rows, hidden, request.output_dtype)});
  }
  if (any_non_finite) reply.non_finite_tokens = CountNonFiniteRows(held, row_begin, rows, hidden);
  return reply;
}

void WorkerService::Answer(QueuedCall& call, ForwardReply reply) {
  calls_by_code_[static_cast<size_t>(reply.status.code())]->Increment();
  call.reply(std::move(reply));
  absl::MutexLock lock(&mutex_);
  --in_flight_;
  ++finished_;
}

void WorkerService::CountBatch(const std::vector<QueuedCall>& calls, const LayerBatch& batch,
                               absl::Time start) {
  metrics_.batch_calls.Observe(static_cast<double>(calls.size()));
  metrics_.batch_tokens.Observe(batch.tokens.num_tokens);
  metrics_.compute_seconds.Observe(absl::ToDoubleSeconds(clock_.Now() - start));
  const BatchLoad load = load_counter_.Count(batch);
  metrics_.expert_rows.Increment(static_cast<double>(load.expert_rows));
  metrics_.activated_experts.Increment(static_cast<double>(load.activated_experts));
  metrics_.weight_bytes_read.Increment(static_cast<double>(load.weight_bytes));
  for (const QueuedCall& call : calls) {
    metrics_.queue_seconds.Observe(absl::ToDoubleSeconds(start - call.received));
  }
}

std::vector<ShardSum> WorkerService::EmptySums(int layer) const {
  std::vector<ShardSum> sums;
  for (size_t shard = 0; shard < description_.shards.size(); ++shard) {
    if (HoldsLayer(shard, layer)) sums.push_back({static_cast<int>(shard), ""});
  }
  return sums;
}

bool WorkerService::HoldsLayer(size_t shard, int layer) const {
  const std::vector<int>& layers = description_.shards[shard].layers;
  return std::binary_search(layers.begin(), layers.end(), layer);
}

}  // namespace atelier
