#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

namespace atelier {

// Every metric of both services. Base units (seconds, bytes); label values come from bounded sets.
// Each struct registers its families in the registry given, which must outlive it. Members are
// thread-safe; updating one costs an atomic (a histogram: a short lock).

struct WorkerMetrics {
  explicit WorkerMetrics(prometheus::Registry& registry);

  prometheus::Family<prometheus::Counter>&
      calls;  // atelier_worker_calls_total{code}: use CallsWith
  prometheus::Counter& CallsWith(const std::string& canonical_code_name);

  prometheus::Counter& tokens;  // atelier_worker_tokens_total: rows received
  prometheus::Counter&
      expert_rows;  // atelier_worker_expert_rows_total: (token, expert) pairs computed
  prometheus::Counter& activated_experts;  // atelier_worker_activated_experts_total: experts whose
                                           // weights were read, per batch
  prometheus::Counter& weight_bytes_read;  // atelier_worker_weight_read_bytes_total
  prometheus::Counter& non_finite_tokens;  // atelier_worker_non_finite_tokens_total
  prometheus::Counter& dropped_calls;  // atelier_worker_dropped_calls_total: cancelled or too late
                                       // before they were started
  prometheus::Gauge& queue_depth;      // atelier_worker_queue_depth: calls waiting
  prometheus::Gauge& weight_bytes;     // atelier_worker_weight_bytes: resident packed weights
  prometheus::Gauge&
      state;  // atelier_worker_state: 0 starting 1 loading 2 serving 3 draining 4 stopped
  prometheus::Histogram& batch_tokens;     // atelier_worker_batch_tokens
  prometheus::Histogram& batch_calls;      // atelier_worker_batch_calls: calls merged into a batch
  prometheus::Histogram& queue_seconds;    // atelier_worker_queue_seconds
  prometheus::Histogram& compute_seconds;  // atelier_worker_compute_seconds
};

// Of one client of workers (a frontend).
struct ClientMetrics {
  explicit ClientMetrics(prometheus::Registry& registry);

  // Label worker = the address as configured: as many as there are workers.
  prometheus::Histogram& CallSeconds(
      const std::string& worker);  // atelier_frontend_worker_call_seconds{worker}
  prometheus::Counter& CallErrors(
      const std::string& worker,
      const std::string& code);  // …_worker_call_errors_total{worker,code}
  prometheus::Gauge& Connected(const std::string& worker);  // …_worker_connected{worker}: 0 or 1
  prometheus::Counter& Reconnects(const std::string& worker);  // …_worker_reconnects_total{worker}
  // Calls sent to another replica because this worker failed them, was late, or answered with a
  // NaN or an infinity.
  prometheus::Counter& Failovers(const std::string& worker);  // …_worker_failovers_total{worker}
  prometheus::Counter& Hedges(const std::string& worker);     // …_worker_hedges_total{worker}
  prometheus::Counter& NotFinite(const std::string& worker);  // …_worker_not_finite_total{worker}
  prometheus::Counter& LateAnswers(
      const std::string& worker);  // …_worker_late_answers_total{worker}: dropped
  prometheus::Counter& Ejections(const std::string& worker);  // …_worker_ejections_total{worker}
  prometheus::Gauge& Ejected(const std::string& worker);      // …_worker_ejected{worker}: 0 or 1
  // Label shard = ShardName: as many as the workers' shards.
  prometheus::Gauge& LiveReplicas(const std::string& shard);  // …_shard_live_replicas{shard}

  prometheus::Family<prometheus::Histogram>& call_seconds;
  prometheus::Family<prometheus::Counter>& call_errors;
  prometheus::Family<prometheus::Gauge>& connected;
  prometheus::Family<prometheus::Counter>& reconnects;
  prometheus::Family<prometheus::Counter>& failovers;
  prometheus::Family<prometheus::Counter>& hedges;
  prometheus::Family<prometheus::Counter>& not_finite;
  prometheus::Family<prometheus::Counter>& late_answers;
  prometheus::Family<prometheus::Counter>& ejections;
  prometheus::Family<prometheus::Gauge>& ejected;
  prometheus::Family<prometheus::Gauge>& live_replicas;
};

// The parts of a step whose time is measured, per layer.
enum class Stage { kAttention, kRouter, kWorkers, kShared, kDense, kHead };

struct FrontendMetrics {
  explicit FrontendMetrics(prometheus::Registry& registry);

  prometheus::Counter& RequestsWith(
      const std::string& outcome);                   // {outcome}: stop, length, abort, error
  prometheus::Histogram& StageSeconds(Stage stage);  // {stage}

  prometheus::Family<prometheus::Counter>& requests;  // atelier_frontend_requests_total{outcome}
  prometheus::Family<prometheus::Histogram>&
      stage_seconds;                           // atelier_frontend_layer_stage_seconds{stage}
  prometheus::Counter& prompt_tokens;          // atelier_frontend_prompt_tokens_total
  prometheus::Counter& cached_tokens;          // atelier_frontend_cached_prompt_tokens_total
  prometheus::Counter& generated_tokens;       // atelier_frontend_generated_tokens_total
  prometheus::Counter& preemptions;            // atelier_frontend_preemptions_total
  prometheus::Counter& steps;                  // atelier_frontend_steps_total
  prometheus::Gauge& running;                  // atelier_frontend_running_requests
  prometheus::Gauge& waiting;                  // atelier_frontend_waiting_requests
  prometheus::Gauge& kv_usage;                 // atelier_frontend_kv_cache_usage_ratio, 0 … 1
  prometheus::Histogram& time_to_first_token;  // atelier_frontend_time_to_first_token_seconds
  prometheus::Histogram& inter_token_latency;  // atelier_frontend_inter_token_latency_seconds
  prometheus::Histogram& request_seconds;      // atelier_frontend_request_seconds
  prometheus::Histogram& queue_seconds;        // atelier_frontend_queue_seconds
  prometheus::Histogram& step_tokens;          // atelier_frontend_step_tokens: batch fill
};

}  // namespace atelier
