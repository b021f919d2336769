#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "libs/base/clock.h"
#include "libs/kernels/aligned_buffer.h"
#include "libs/metrics/metrics.h"
#include "libs/model/expert_set.h"
#include "libs/transport/worker_protocol.h"
#include "services/expert-worker/batch_merger.h"
#include "services/expert-worker/batcher.h"
#include "services/expert-worker/executor.h"
#include "services/expert-worker/lifecycle.h"
#include "services/expert-worker/load_counter.h"
#include "services/expert-worker/shard_host.h"

namespace atelier {

// What a worker holds under one epoch. Calls name the epoch by which they know the shards, and get
// the sums of those, even when other shards are held by the time they are computed: their weights
// live as long as this.
struct ServedShards {
  WorkerDescription description;
  std::shared_ptr<Executor> executor;           // null = not loaded yet
  LoadCounter load_counter;                     // of the computing thread
  absl::Time last_used = absl::InfinitePast();  // of one that is not the newest; its service locks
};

// What a worker does with calls, whatever brings them: checks each, queues it, and computes merged
// batches on one thread of its own. Until Serve, and again from the drain on, calls are
// UNAVAILABLE. Thread-safe. Owned by the worker; must outlive the transports that call it.
class WorkerService final : public WorkerHandler {
 public:
  struct Dependencies {
    Lifecycle& lifecycle;
    WorkerMetrics& metrics;
    Clock& clock;
    // How long no call of an older epoch has come when shards that are unloaded are given back.
    absl::Duration unload_grace = absl::Seconds(4);
  };
  // What it serves. `description` in all but `state`, which is the lifecycle's.
  struct Served {
    WorkerDescription description;
    std::vector<int64_t> expert_bytes;  // mean packed bytes of an expert of each shard, for metrics
    ExpertSet skipped = {};             // experts of the shards that are not held
  };
  WorkerService(Served served, const BatcherOptions& batching, const Dependencies& dependencies);
  ~WorkerService() override;

  // Starts to compute with `executor` and then serves. `thread_started` runs first on the computing
  // thread (to bind it to a node). `host`, which must outlive this, may change what is held; null =
  // nothing can. Call once.
  void Serve(std::shared_ptr<Executor> executor, std::function<void()> thread_started = nullptr,
             ShardHost* host = nullptr);
  // Ends what is queued with UNAVAILABLE and joins the computing thread after its batch.
  // Idempotent.
  void Stop();

  WorkerDescription Describe() const override;
  void Forward(ForwardRequest request, std::shared_ptr<const CallContext> context,
               std::function<void(ForwardReply)> reply) override;
  void OnRefused(const absl::Status& status) override;
  // DEADLINE_EXCEEDED with the number of calls left when the deadline passes first.
  absl::StatusOr<int64_t> Drain(absl::Time deadline) override;
  // ABORTED while another Load or Unload is under way; errors as the host's.
  absl::StatusOr<WorkerDescription> Load(const std::vector<ShardSpec>& shards) override;
  absl::StatusOr<WorkerDescription> Unload(const std::vector<ShardSpec>& shards) override;

 private:
  using ServedList = std::vector<std::shared_ptr<ServedShards>>;

  std::shared_ptr<ServedShards> Newest() const;
  // What the caller means, who names an epoch or 0; the newest when it is unknown.
  std::shared_ptr<ServedShards> ServedAt(uint64_t epoch);
  void Switch(HeldShards held);
  // Returns when no call of an older epoch has come for a while, or the worker does not serve.
  void AwaitQuiet();
  void ForgetOlder();

  // Why the call is not queued; OK when it is.
  absl::Status Enqueue(QueuedCall& call);
  void Run();
  // Waits for work; an empty batch means that the service stops.
  Batcher::Batch NextBatch();
  void ComputeAll(std::vector<QueuedCall> calls);
  // Calls of the same epoch.
  void Compute(std::vector<QueuedCall> calls);
  ForwardReply ReplyTo(const QueuedCall& call, int row_begin, bool any_non_finite) const;
  void Answer(QueuedCall& call, ForwardReply reply);
  void CountBatch(const std::vector<QueuedCall>& calls, const LayerBatch& batch, absl::Time start);
  bool HasWorkOrStops() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !batcher_.empty();
  }
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return in_flight_ == 0; }

  const ExpertSet skipped_;
  Lifecycle& lifecycle_;
  WorkerMetrics& metrics_;
  Clock& clock_;
  const absl::Duration unload_grace_;
  std::vector<prometheus::Counter*> calls_by_code_;
  absl::Mutex changing_;  // held by the Load or Unload that is under way
  ShardHost* host_ = nullptr;

  mutable absl::Mutex mutex_;
  ServedList served_ ABSL_GUARDED_BY(mutex_);  // by age; the last is what is described
  Batcher batcher_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;  // queued or computing
  int64_t finished_ ABSL_GUARDED_BY(mutex_) = 0;

  // Of the computing thread only.
  BatchMerger merger_;
  std::vector<AlignedBuffer<float>> sum_buffers_;  // per shard
  std::vector<float*> sums_;
  std::thread thread_;
};

}  // namespace atelier
