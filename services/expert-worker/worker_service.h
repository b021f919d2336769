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
#include "libs/transport/worker_protocol.h"
#include "services/expert-worker/batch_merger.h"
#include "services/expert-worker/batcher.h"
#include "services/expert-worker/executor.h"
#include "services/expert-worker/lifecycle.h"
#include "services/expert-worker/load_counter.h"
#include "services/expert-worker/skipped_experts.h"

namespace atelier {

// What a worker does with calls, whatever brings them: checks each, queues it, and computes merged
// batches on one thread of its own. Until Serve, and again from the drain on, calls are
// UNAVAILABLE. Thread-safe. Owned by the worker; must outlive the transports that call it.
class WorkerService final : public WorkerHandler {
 public:
  struct Dependencies {
    Lifecycle& lifecycle;
    WorkerMetrics& metrics;
    Clock& clock;
  };
  // What it serves. `description` in all but `state`, which is the lifecycle's.
  struct Served {
    WorkerDescription description;
    std::vector<int64_t> expert_bytes;  // mean packed bytes of an expert of each shard, for metrics
    SkippedExperts skipped = {};        // experts of the shards that are not held
  };
  WorkerService(Served served, const BatcherOptions& batching, const Dependencies& dependencies);
  ~WorkerService() override;

  // Starts to compute with `executor`, which must outlive this, and then serves. `thread_started`
  // runs first on the computing thread (to bind it to a node). Call once.
  void Serve(Executor& executor, std::function<void()> thread_started = nullptr);
  // Ends what is queued with UNAVAILABLE and joins the computing thread after its batch.
  // Idempotent.
  void Stop();

  WorkerDescription Describe() const override;
  void Forward(ForwardRequest request, std::shared_ptr<const CallContext> context,
               std::function<void(ForwardReply)> reply) override;
  void OnRefused(const absl::Status& status) override;
  // DEADLINE_EXCEEDED with the number of calls left when the deadline passes first.
  absl::StatusOr<int64_t> Drain(absl::Time deadline) override;

 private:
  // Why the call is not queued; OK when it is.
  absl::Status Enqueue(QueuedCall& call);
  void Run(Executor& executor);
  // Waits for work; an empty batch means that the service stops.
  Batcher::Batch NextBatch();
  void Compute(Executor& executor, std::vector<QueuedCall> calls);
  ForwardReply ReplyTo(const QueuedCall& call, int row_begin, bool any_non_finite) const;
  void Answer(QueuedCall& call, ForwardReply reply);
  void CountBatch(const std::vector<QueuedCall>& calls, const LayerBatch& batch, absl::Time start);
  std::vector<ShardSum> EmptySums(int layer) const;
  bool HoldsLayer(size_t shard, int layer) const;
  bool HasWorkOrStops() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !batcher_.empty();
  }
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return in_flight_ == 0; }

  const WorkerDescription description_;
  const SkippedExperts skipped_;
  Lifecycle& lifecycle_;
  WorkerMetrics& metrics_;
  Clock& clock_;
  std::vector<prometheus::Counter*> calls_by_code_;

  absl::Mutex mutex_;
  Batcher batcher_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;  // queued or computing
  int64_t finished_ ABSL_GUARDED_BY(mutex_) = 0;

  // Of the computing thread only.
  BatchMerger merger_;
  LoadCounter load_counter_;
  std::vector<AlignedBuffer<float>> sum_buffers_;  // per shard
  std::vector<float*> sums_;
  std::thread thread_;
};

}  // namespace atelier
