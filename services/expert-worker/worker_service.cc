#include "services/expert-worker/worker_service.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/cleanup/cleanup.h"
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

bool HoldsLayer(const ShardSpec& shard, int layer) {
  return std::binary_search(shard.layers.begin(), shard.layers.end(), layer);
}

std::vector<ShardSum> EmptySums(const WorkerDescription& description, int layer) {
  std::vector<ShardSum> sums;
  for (size_t shard = 0; shard < description.shards.size(); ++shard) {
    if (HoldsLayer(description.shards[shard], layer)) {
      sums.push_back({static_cast<int>(shard), ""});
    }
  }
  return sums;
}

absl::Status AnotherChange() {
  return absl::AbortedError("another Load or Unload is under way: try again when it has ended");
}

// Often enough to notice a drain.
constexpr absl::Duration kQuietCheck = absl::Milliseconds(20);

}  // namespace

WorkerService::WorkerService(Served served, const BatcherOptions& batching,
                             const Dependencies& dependencies)
    : skipped_(std::move(served.skipped)),
      lifecycle_(dependencies.lifecycle),
      metrics_(dependencies.metrics),
      clock_(dependencies.clock),
      unload_grace_(dependencies.unload_grace),
      batcher_(batching, dependencies.clock) {
  LoadCounter counter(served.description.shards, std::move(served.expert_bytes),
                      served.description.num_experts);
  served_.push_back(std::make_shared<ServedShards>(
      ServedShards{std::move(served.description), nullptr, std::move(counter)}));
  // All series exist from the start, so a rate over the first error is seen, and no call pays for
  // the look-up.
  for (int code = 0; code < kNumStatusCodes; ++code) {
    const std::string name = absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
    calls_by_code_.push_back(&metrics_.CallsWith(name));
  }
}

WorkerService::~WorkerService() { Stop(); }

void WorkerService::Serve(std::shared_ptr<Executor> executor, std::function<void()> thread_started,
                          ShardHost* host) {
  ATELIER_CHECK(!thread_.joinable());
  host_ = host;
  Newest()->executor = std::move(executor);
  thread_ = std::thread([this, started = std::move(thread_started)] {
    if (started) started();
    Run();
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

std::shared_ptr<ServedShards> WorkerService::Newest() const {
  absl::MutexLock lock(&mutex_);
  return served_.back();
}

std::shared_ptr<ServedShards> WorkerService::ServedAt(uint64_t epoch) {
  absl::MutexLock lock(&mutex_);
  if (epoch == 0 || epoch == served_.back()->description.epoch) return served_.back();
  for (const std::shared_ptr<ServedShards>& served : served_) {
    if (served->description.epoch != epoch) continue;
    served->last_used = clock_.Now();
    return served;
  }
  return served_.back();
}

WorkerDescription WorkerService::Describe() const {
  WorkerDescription description = Newest()->description;
  description.state = lifecycle_.state();
  return description;
}

absl::StatusOr<WorkerDescription> WorkerService::Load(const std::vector<ShardSpec>& shards) {
  ATELIER_RETURN_IF_ERROR(lifecycle_.Ready());
  if (host_ == nullptr) return WorkerHandler::Load(shards);
  if (!changing_.TryLock()) return AnotherChange();
  const absl::Cleanup unlock = [this] { changing_.Unlock(); };
  ATELIER_ASSIGN_OR_RETURN(HeldShards held, host_->Load(shards));
  Switch(std::move(held));
  return Describe();
}

absl::StatusOr<WorkerDescription> WorkerService::Unload(const std::vector<ShardSpec>& shards) {
  ATELIER_RETURN_IF_ERROR(lifecycle_.Ready());
  if (host_ == nullptr) return WorkerHandler::Unload(shards);
  if (!changing_.TryLock()) return AnotherChange();
  const absl::Cleanup unlock = [this] { changing_.Unlock(); };
  ATELIER_ASSIGN_OR_RETURN(HeldShards held, host_->Unload(shards));
  Switch(std::move(held));
  AwaitQuiet();
  ForgetOlder();
  return Describe();
}

void WorkerService::Switch(HeldShards held) {
  absl::MutexLock lock(&mutex_);
  ServedShards& before = *served_.back();
  if (before.description.shards == held.shards) return;
  WorkerDescription description = before.description;
  description.shards = held.shards;
  if (++description.epoch == 0) ++description.epoch;  // 0 means any
  before.last_used = clock_.Now();
  LoadCounter counter(std::move(held.shards), std::move(held.expert_bytes),
                      description.num_experts);
  served_.push_back(std::make_shared<ServedShards>(
      ServedShards{std::move(description), std::move(held.executor), std::move(counter)}));
}

void WorkerService::AwaitQuiet() {
  absl::MutexLock lock(&mutex_);
  while (!stopping_ && lifecycle_.Ready().ok()) {
    absl::Time last = absl::InfinitePast();
    for (const std::shared_ptr<ServedShards>& served : served_) {
      last = std::max(last, served->last_used);
    }
    if (clock_.Now() >= last + unload_grace_) return;
    mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kQuietCheck);
  }
}

// Calls under way keep what they need; the others of those epochs are refused from now on.
void WorkerService::ForgetOlder() {
  std::vector<std::weak_ptr<ServedShards>> older;
  ServedList forgotten;
  {
    absl::MutexLock lock(&mutex_);
    forgotten.assign(served_.begin(), served_.end() - 1);
    served_.erase(served_.begin(), served_.end() - 1);
  }
  for (const std::shared_ptr<ServedShards>& served : forgotten) older.push_back(served);
  forgotten.clear();
  const auto gone = [&older] {
    return std::all_of(older.begin(), older.end(),
                       [](const std::weak_ptr<ServedShards>& served) { return served.expired(); });
  };
  absl::MutexLock lock(&mutex_);
  while (!stopping_ && !gone()) mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kQuietCheck);
}

void WorkerService::Forward(ForwardRequest request, std::shared_ptr<const CallContext> context,
                            std::function<void(ForwardReply)> reply) {
  QueuedCall call{std::move(request), std::move(context), std::move(reply), clock_.Now()};
  call.served = ServedAt(call.request.epoch);
  const WorkerDescription& description = call.served->description;
  absl::Status status = lifecycle_.Ready();
  if (status.ok()) status = CheckRequest(call.request, description);
  if (status.ok()) status = CheckNotSkipped(call.request, description, skipped_);
  if (status.ok() && call.request.batch.num_tokens > 0) {
    status = Enqueue(call);
    if (status.ok()) return;
  }
  ForwardReply answer = Failed(std::move(status));
  if (answer.status.ok()) answer.sums = EmptySums(description, call.request.layer);
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

void WorkerService::Run() {
  for (;;) {
    Batcher::Batch batch = NextBatch();
    for (Batcher::Batch::Dropped& dropped : batch.dropped) {
      metrics_.dropped_calls.Increment();
      Answer(dropped.call, Failed(std::move(dropped.status)));
    }
    if (!batch.calls.empty()) {
      ComputeAll(std::move(batch.calls));
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

void WorkerService::ComputeAll(std::vector<QueuedCall> calls) {
  while (!calls.empty()) {
    const std::shared_ptr<ServedShards> served = calls[0].served;
    const auto others = std::stable_partition(
        calls.begin(), calls.end(), [&](const QueuedCall& call) { return call.served == served; });
    std::vector<QueuedCall> left(std::make_move_iterator(others),
                                 std::make_move_iterator(calls.end()));
    calls.erase(others, calls.end());
    Compute(std::move(calls));
    calls = std::move(left);
  }
}

void WorkerService::Compute(std::vector<QueuedCall> calls) {
  const absl::Time start = clock_.Now();
  const LayerBatch batch = merger_.Merge(calls);
  const size_t floats =
      static_cast<size_t>(batch.tokens.num_tokens) * static_cast<size_t>(batch.tokens.hidden_size);
  const ServedShards& served = *calls[0].served;
  sums_.resize(served.description.shards.size());
  if (sum_buffers_.size() < sums_.size()) sum_buffers_.resize(sums_.size());
  for (size_t shard = 0; shard < sums_.size(); ++shard) {
    sums_[shard] = sum_buffers_[shard].Reserve(floats);
  }
  const int non_finite = served.executor->Forward(batch, sums_);
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
    if (!HoldsLayer(call.served->description.shards[shard], request.layer)) continue;
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
  const BatchLoad load = calls[0].served->load_counter.Count(batch);
  metrics_.expert_rows.Increment(static_cast<double>(load.expert_rows));
  metrics_.activated_experts.Increment(static_cast<double>(load.activated_experts));
  metrics_.weight_bytes_read.Increment(static_cast<double>(load.weight_bytes));
  for (const QueuedCall& call : calls) {
    metrics_.queue_seconds.Observe(absl::ToDoubleSeconds(start - call.received));
  }
}

}  // namespace atelier
