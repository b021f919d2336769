#include "services/gpu-frontend/api/info_mapping.h"

#include <algorithm>
#include <limits>
#include <string>

#include "google/protobuf/struct.pb.h"

namespace atelier {
namespace {

namespace wire = ::sglang::grpc::scheduler;

int32_t Capped(int64_t value) {
  return static_cast<int32_t>(std::clamp<int64_t>(value, 0, std::numeric_limits<int32_t>::max()));
}

double Fraction(int64_t part, int64_t whole) {
  return whole > 0 ? std::min(1.0, static_cast<double>(part) / static_cast<double>(whole)) : 0.0;
}

void Set(google::protobuf::Struct* args, const char* key, const std::string& value) {
  (*args->mutable_fields())[key].set_string_value(value);
}
void Set(google::protobuf::Struct* args, const char* key, int64_t value) {
  (*args->mutable_fields())[key].set_number_value(static_cast<double>(value));
}
void Set(google::protobuf::Struct* args, const char* key, bool value) {
  (*args->mutable_fields())[key].set_bool_value(value);
}

void FillServerArgs(const ServedModel& model, const EngineLoad& load,
                    google::protobuf::Struct* args) {
  Set(args, "model_path", model.model_path);
  Set(args, "served_model_name", model.served_model_name);
  Set(args, "tokenizer_path", model.tokenizer_path);
  Set(args, "weight_version", model.weight_version);
  Set(args, "device", model.device);
  Set(args, "load_balance_method", std::string("round_robin"));
  Set(args, "disaggregation_mode", std::string("null"));
  Set(args, "tp_size", int64_t{1});
  Set(args, "dp_size", int64_t{1});
  Set(args, "pp_size", int64_t{1});
  Set(args, "context_length", int64_t{model.max_context});
  Set(args, "vocab_size", int64_t{model.config.vocab_size});
  Set(args, "max_total_tokens", load.total_tokens);
  Set(args, "max_running_requests", int64_t{load.max_running});
  Set(args, "is_embedding", false);
}

void FillTimestamp(absl::Time time, google::protobuf::Timestamp* timestamp) {
  timestamp->set_seconds(absl::ToUnixSeconds(time));
  timestamp->set_nanos(static_cast<int32_t>(
      absl::ToInt64Nanoseconds(time - absl::FromUnixSeconds(absl::ToUnixSeconds(time)))));
}

void FillLoad(const ServedModel& model, const EngineLoad& load, wire::SchedulerLoad* out) {
  out->set_num_running_reqs(load.running);
  out->set_num_waiting_reqs(load.waiting);
  out->set_num_total_reqs(load.running + load.waiting);
  out->set_num_used_tokens(Capped(load.used_tokens));
  out->set_max_total_num_tokens(Capped(load.total_tokens));
  out->set_token_usage(Fraction(load.used_tokens, load.total_tokens));
  out->set_gen_throughput(load.tokens_per_second);
  out->set_cache_hit_rate(load.cache_hit_rate);
  out->set_utilization(Fraction(load.running, load.max_running));
  out->set_max_running_requests(load.max_running);
  out->set_num_waiting_uncached_tokens(Capped(load.waiting_uncached_tokens));
  wire::MemoryMetrics* memory = out->mutable_memory();
  memory->set_weight_gb(static_cast<double>(model.weight_bytes) / 0x1p30);
  memory->set_kv_cache_gb(static_cast<double>(load.kv_cache_bytes) / 0x1p30);
  memory->set_token_capacity(Capped(load.total_tokens));
  out->mutable_queues()->set_waiting(load.waiting);
}

}  // namespace

void FillModelInfo(const ServedModel& model, wire::GetModelInfoResponse* response) {
  const ModelConfig& config = model.config;
  response->set_model_path(model.model_path);
  response->set_tokenizer_path(model.tokenizer_path);
  response->set_is_generation(true);
  response->set_weight_version(model.weight_version);
  response->set_served_model_name(model.served_model_name);
  response->set_max_context_length(model.max_context);
  response->set_vocab_size(config.vocab_size);
  response->set_model_type(config.model_type);
  for (const std::string& name : config.architectures) response->add_architectures(name);
  for (const int64_t id : config.eos_token_ids) response->add_eos_token_ids(Capped(id));
  response->set_pad_token_id(Capped(config.pad_token_id));
  response->set_bos_token_id(Capped(config.bos_token_id));
  response->set_max_req_input_len(model.max_context - 1);  // room for one new token
  response->set_default_sampling_params_json(model.default_sampling_params_json);
}

void FillServerInfo(const ServedModel& model, const EngineLoad& load, const ServerTimes& times,
                    wire::GetServerInfoResponse* response) {
  FillServerArgs(model, load, response->mutable_server_args());
  response->set_active_requests(load.running + load.waiting);
  response->set_is_paused(false);
  if (times.last_request != absl::InfinitePast()) {
    response->set_last_receive_timestamp(
        absl::ToDoubleSeconds(times.last_request - absl::UnixEpoch()));
  }
  response->set_uptime_seconds(absl::ToDoubleSeconds(times.now - times.started));
  response->set_sglang_version(model.server_version);
  response->set_server_type("grpc");
  FillTimestamp(times.started, response->mutable_start_time());
  response->set_max_total_num_tokens(Capped(load.total_tokens));
}

void FillLoads(const ServedModel& model, const EngineLoad& load, absl::Time now,
               wire::GetLoadsResponse* response) {
  response->set_timestamp(absl::FormatTime(absl::RFC3339_full, now, absl::UTCTimeZone()));
  response->set_version(model.server_version);
  response->set_dp_rank_count(1);
  wire::SchedulerLoad* only = response->add_loads();
  FillLoad(model, load, only);
  wire::AggregateMetrics* aggregate = response->mutable_aggregate();
  aggregate->set_total_running_reqs(only->num_running_reqs());
  aggregate->set_total_waiting_reqs(only->num_waiting_reqs());
  aggregate->set_total_reqs(only->num_total_reqs());
  aggregate->set_avg_token_usage(only->token_usage());
  aggregate->set_avg_throughput(only->gen_throughput());
  aggregate->set_avg_utilization(only->utilization());
}

}  // namespace atelier
