#include "libs/metrics/metrics.h"

#include <array>

namespace atelier {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Registry;
using Buckets = Histogram::BucketBoundaries;

// 10 us … 10 s: a decode layer takes tens of microseconds to milliseconds, a prefill layer up to
// seconds.
Buckets StageBuckets() {
  return {1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2,
          2e-2, 5e-2, 0.1,  0.2,  0.5,  1,    2,    5,    10};
}
// The bounds that dashboards of other engines use, so panels can be shared.
Buckets FirstTokenBuckets() {
  return {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
          1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
}
Buckets InterTokenBuckets() {
  return {.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3,
          .4,   .5,    .75,  1,   2.5,  5,   7.5,  10, 20,  40, 80};
}
Buckets RequestBuckets() {
  return {.05, .1, .3, .5, .8, 1,   1.5, 2,   2.5, 5,    10,  15,
          20,  30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
}
Buckets CountBuckets() { return {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192}; }

Family<Counter>& Counters(Registry& registry, const std::string& name, const std::string& help) {
  return BuildCounter().Name(name).Help(help).Register(registry);
}
Counter& OneCounter(Registry& registry, const std::string& name, const std::string& help) {
  return Counters(registry, name, help).Add({});
}
Family<Gauge>& Gauges(Registry& registry, const std::string& name, const std::string& help) {
  return BuildGauge().Name(name).Help(help).Register(registry);
}
Gauge& OneGauge(Registry& registry, const std::string& name, const std::string& help) {
  return Gauges(registry, name, help).Add({});
}
Family<Histogram>& Histograms(Registry& registry, const std::string& name,
                              const std::string& help) {
  return BuildHistogram().Name(name).Help(help).Register(registry);
}
Histogram& OneHistogram(Registry& registry, const std::string& name, const std::string& help,
                        const Buckets& buckets) {
  return Histograms(registry, name, help).Add({}, buckets);
}

}  // namespace

WorkerMetrics::WorkerMetrics(Registry& registry)
    : calls(Counters(registry, "atelier_worker_calls_total",
                     "Forward calls answered, by status code.")),
      tokens(OneCounter(registry, "atelier_worker_tokens_total", "Rows received.")),
      expert_rows(OneCounter(registry, "atelier_worker_expert_rows_total",
                             "(token, expert) pairs computed.")),
      activated_experts(OneCounter(registry, "atelier_worker_activated_experts_total",
                                   "Experts whose weights were read, summed over batches.")),
      weight_bytes_read(OneCounter(registry, "atelier_worker_weight_read_bytes_total",
                                   "Packed weight bytes of the activated experts.")),
      non_finite_tokens(OneCounter(registry, "atelier_worker_non_finite_tokens_total",
                                   "Rows whose result held a NaN or an infinity.")),
      dropped_calls(OneCounter(registry, "atelier_worker_dropped_calls_total",
                               "Calls cancelled or past their deadline before they were started.")),
      queue_depth(OneGauge(registry, "atelier_worker_queue_depth", "Calls waiting.")),
      weight_bytes(OneGauge(registry, "atelier_worker_weight_bytes", "Resident packed weights.")),
      state(OneGauge(registry, "atelier_worker_state",
                     "0 starting, 1 loading, 2 serving, 3 draining, 4 stopped.")),
      batch_tokens(OneHistogram(registry, "atelier_worker_batch_tokens", "Rows of a merged batch.",
                                CountBuckets())),
      batch_calls(OneHistogram(registry, "atelier_worker_batch_calls", "Calls merged into a batch.",
                               CountBuckets())),
      queue_seconds(OneHistogram(registry, "atelier_worker_queue_seconds",
                                 "From receipt of a call to the start of its computation.",
                                 StageBuckets())),
      compute_seconds(OneHistogram(registry, "atelier_worker_compute_seconds",
                                   "Computation of one batch.", StageBuckets())) {}

Counter& WorkerMetrics::CallsWith(const std::string& canonical_code_name) {
  return calls.Add({{"code", canonical_code_name}});
}

ClientMetrics::ClientMetrics(Registry& registry)
    : call_seconds(Histograms(registry, "atelier_frontend_worker_call_seconds",
                              "One layer's call to one worker, from sending to its answer.")),
      call_errors(Counters(registry, "atelier_frontend_worker_call_errors_total",
                           "Failed calls, by status code.")),
      connected(
          Gauges(registry, "atelier_frontend_worker_connected", "1 while the worker is usable.")),
      reconnects(Counters(registry, "atelier_frontend_worker_reconnects_total",
                          "Times a worker became usable again.")),
      failovers(Counters(registry, "atelier_frontend_worker_failovers_total",
                         "Calls that went to another replica because this worker failed them.")),
      hedges(Counters(registry, "atelier_frontend_worker_hedges_total",
                      "Calls that also went to another replica because this worker was late.")),
      not_finite(Counters(registry, "atelier_frontend_worker_not_finite_total",
                          "Answers with a NaN or an infinity where another replica had none.")),
      late_answers(Counters(registry, "atelier_frontend_worker_late_answers_total",
                            "Answers dropped because the call was over or answered by another "
                            "replica.")),
      ejections(Counters(registry, "atelier_frontend_worker_ejections_total",
                         "Times a worker that is connected was left out for a while, because it "
                         "failed or stalled.")),
      ejected(Gauges(registry, "atelier_frontend_worker_ejected", "1 while it is left out.")),
      live_replicas(Gauges(registry, "atelier_frontend_shard_live_replicas",
                           "Workers that hold the shard and take calls.")) {}

Histogram& ClientMetrics::CallSeconds(const std::string& worker) {
  return call_seconds.Add({{"worker", worker}}, StageBuckets());
}
Counter& ClientMetrics::CallErrors(const std::string& worker, const std::string& code) {
  return call_errors.Add({{"worker", worker}, {"code", code}});
}
Gauge& ClientMetrics::Connected(const std::string& worker) {
  return connected.Add({{"worker", worker}});
}
Counter& ClientMetrics::Reconnects(const std::string& worker) {
  return reconnects.Add({{"worker", worker}});
}
Counter& ClientMetrics::Failovers(const std::string& worker) {
  return failovers.Add({{"worker", worker}});
}
Counter& ClientMetrics::Hedges(const std::string& worker) {
  return hedges.Add({{"worker", worker}});
}
Counter& ClientMetrics::NotFinite(const std::string& worker) {
  return not_finite.Add({{"worker", worker}});
}
Counter& ClientMetrics::LateAnswers(const std::string& worker) {
  return late_answers.Add({{"worker", worker}});
}
Counter& ClientMetrics::Ejections(const std::string& worker) {
  return ejections.Add({{"worker", worker}});
}
Gauge& ClientMetrics::Ejected(const std::string& worker) {
  return ejected.Add({{"worker", worker}});
}
Gauge& ClientMetrics::LiveReplicas(const std::string& shard) {
  return live_replicas.Add({{"shard", shard}});
}

FrontendMetrics::FrontendMetrics(Registry& registry)
    : requests(
          Counters(registry, "atelier_frontend_requests_total", "Requests ended, by outcome.")),
      stage_seconds(Histograms(registry, "atelier_frontend_layer_stage_seconds",
                               "Time of one stage of one layer (head: of one step).")),
      prompt_tokens(OneCounter(registry, "atelier_frontend_prompt_tokens_total",
                               "Prompt tokens of admitted requests.")),
      cached_tokens(OneCounter(registry, "atelier_frontend_cached_prompt_tokens_total",
                               "Prompt tokens found in the prefix cache.")),
      generated_tokens(
          OneCounter(registry, "atelier_frontend_generated_tokens_total", "Tokens generated.")),
      preemptions(OneCounter(registry, "atelier_frontend_preemptions_total",
                             "Sequences evicted from the KV cache, to be recomputed.")),
      steps(OneCounter(registry, "atelier_frontend_steps_total", "Engine steps.")),
      running(OneGauge(registry, "atelier_frontend_running_requests", "Sequences in the batch.")),
      waiting(OneGauge(registry, "atelier_frontend_waiting_requests", "Requests waiting.")),
      kv_usage(
          OneGauge(registry, "atelier_frontend_kv_cache_usage_ratio", "Used KV blocks, 0 to 1.")),
      time_to_first_token(OneHistogram(registry, "atelier_frontend_time_to_first_token_seconds",
                                       "From submission to the first token.", FirstTokenBuckets())),
      inter_token_latency(OneHistogram(registry, "atelier_frontend_inter_token_latency_seconds",
                                       "Between two tokens of a sequence.", InterTokenBuckets())),
      request_seconds(OneHistogram(registry, "atelier_frontend_request_seconds",
                                   "From submission to the end.", RequestBuckets())),
      queue_seconds(OneHistogram(registry, "atelier_frontend_queue_seconds",
                                 "From submission to the first step.", FirstTokenBuckets())),
      step_tokens(OneHistogram(registry, "atelier_frontend_step_tokens",
                               "Tokens computed in a step.", CountBuckets())) {}

Counter& FrontendMetrics::RequestsWith(const std::string& outcome) {
  return requests.Add({{"outcome", outcome}});
}

Histogram& FrontendMetrics::StageSeconds(Stage stage) {
  static constexpr std::array<const char*, 6> kNames = {"attention", "router", "workers",
                                                        "shared",    "dense",  "head"};
  return stage_seconds.Add({{"stage", kNames[static_cast<size_t>(stage)]}}, StageBuckets());
}

}  // namespace atelier
