#include "services/gpu-frontend/model_stack.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/checkpoint/expert_set_file.h"
#include "libs/client/client.h"
#include "libs/device/cpu/cpu_device.h"
#include "libs/numa/topology.h"
#include "services/gpu-frontend/experts/client_experts.h"
#include "services/gpu-frontend/graph/memory_plan.h"
#include "services/gpu-frontend/graph/model_graph.h"

namespace atelier {
namespace {

// How often the log says what is still missing while workers are waited for.
constexpr absl::Duration kWaitReport = absl::Seconds(5);
constexpr absl::Duration kFirstReport = absl::Seconds(1);

ClientOptions ClientOptionsFor(const FrontendOptions& options, const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  ClientOptions client;
  client.workers = options.workers;
  client.call_timeout = options.worker_timeout;
  client.security = options.worker_security;
  client.failover.hedge_budget = options.hedge_percent / 100.0;
  client.failover.reconnect_grace = options.replica_grace;
  client.model_digest = checkpoint.digest();
  client.hidden_size = config.hidden_size;
  client.num_experts = config.moe.num_experts;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (config.is_moe_layer[static_cast<size_t>(layer)]) client.moe_layers.push_back(layer);
  }
  return client;
}

// Workers may start later than we do, and load for minutes: UNAVAILABLE is waited out, and reported
// on the way; what cannot mend itself (another model, overlapping shards) ends the wait.
absl::StatusOr<std::unique_ptr<ExpertClient>> AwaitWorkers(const FrontendOptions& options,
                                                           const Checkpoint& checkpoint,
                                                           const LoaderContext& context) {
  ClientOptions client = ClientOptionsFor(options, checkpoint);
  const absl::Time start = context.clock.Now();
  const absl::Time deadline = start + options.connect_timeout;
  absl::Duration patience = kFirstReport;
  while (true) {
    client.connect_timeout =
        std::clamp(deadline - context.clock.Now(), absl::Milliseconds(1), patience);
    patience = kWaitReport;
    auto connected =
        ExpertClient::Connect(client, context.clock, context.logger, &context.client_metrics);
    if (connected.ok() || !absl::IsUnavailable(connected.status())) return connected;
    const absl::Time now = context.clock.Now();
    if (now >= deadline) {
      return absl::UnavailableError(
          absl::StrCat("--connect-timeout=", absl::FormatDuration(options.connect_timeout),
                       " has passed: ", connected.status().message()));
    }
    context.report_waiting(
        absl::StrCat("waiting for expert workers: ", connected.status().message()));
    context.logger.Info(
        "waiting_for_workers",
        {Kv("missing", connected.status().message()),
         Kv("waited", absl::FormatDuration(absl::Trunc(now - start, absl::Seconds(1)))),
         Kv("left", absl::FormatDuration(absl::Trunc(deadline - now, absl::Seconds(1))))});
  }
}

// Experts of the workers that --workers names.
class WorkerExperts final : public ExpertSource {
 public:
  explicit WorkerExperts(std::unique_ptr<ExpertClient> client)
      : client_(std::move(client)), experts_(CreateClientExperts(*client_)) {}
  RemoteExperts& experts() override { return *experts_; }
  absl::Status Ready() const override { return client_->Ready(); }

 private:
  const std::unique_ptr<ExpertClient> client_;
  const std::unique_ptr<RemoteExperts> experts_;
};

absl::StatusOr<std::unique_ptr<ExpertSource>> ConnectToWorkers(const FrontendOptions& options,
                                                               const Checkpoint& checkpoint,
                                                               const LoaderContext& context) {
  ATELIER_ASSIGN_OR_RETURN(std::unique_ptr<ExpertClient> client,
                           AwaitWorkers(options, checkpoint, context));
  context.report_waiting("");
  return std::make_unique<WorkerExperts>(std::move(client));
}

absl::StatusOr<std::unique_ptr<Device>> CreateDevice(const FrontendOptions& options,
                                                     const LoaderContext& context) {
  const Topology topology = Topology::Detect();
  CpuDeviceOptions device;
  device.num_threads = options.threads;
  if (device.num_threads > topology.num_cpus()) {
    return absl::InvalidArgumentError(absl::StrCat("--threads=", device.num_threads,
                                                   ": this process may use ", topology.num_cpus(),
                                                   " CPUs; 0 = all of them"));
  }
  if (device.num_threads == 0) {
    device.num_threads = topology.num_cpus();
    if (topology.cpu_quota > 0) {
      const int quota = static_cast<int>(std::ceil(topology.cpu_quota));
      device.num_threads = std::clamp(quota, 1, device.num_threads);
    }
  }
  ATELIER_ASSIGN_OR_RETURN(device.cpu_isa, ParseCpuIsa(options.cpu_isa));
  ATELIER_ASSIGN_OR_RETURN(std::unique_ptr<Device> created, CreateCpuDevice(device));
  context.logger.Info("device", {Kv("name", created->name()), Kv("threads", device.num_threads),
                                 Kv("topology", topology.ToString())});
  return created;
}

absl::StatusOr<ExpertSet> DeviceExpertsOf(const FrontendOptions& options,
                                          const ModelConfig& config) {
  if (options.device_experts.empty()) return ExpertSet();
  absl::StatusOr<ExpertSet> experts = ReadExpertSet(options.device_experts, config);
  if (experts.ok()) return experts;
  return absl::Status(
      experts.status().code(),
      absl::StrCat("--device-experts=", options.device_experts, ": ", experts.status().message()));
}

GraphOptions GraphOptionsFor(const FrontendOptions& options, const ModelConfig& config) {
  GraphOptions graph;
  graph.kv_cache_bytes = options.kv_cache_bytes;
  const int64_t token_bytes = KvBytesPerToken(config);
  if (options.max_total_tokens > 0 &&
      options.max_total_tokens < options.kv_cache_bytes / token_bytes) {
    graph.kv_cache_bytes = options.max_total_tokens * token_bytes;
  }
  graph.block_size = options.page_size;
  graph.max_context = options.context_length;
  graph.max_tokens_per_step = options.chunked_prefill_size + options.max_running_requests;
  graph.max_sequences = options.max_running_requests;
  return graph;
}

EngineOptions EngineOptionsFor(const FrontendOptions& options, const ModelConfig& config,
                               const GraphOptions& graph) {
  EngineOptions engine;
  engine.max_running_requests = options.max_running_requests;
  engine.max_queued_requests = options.max_queued_requests;
  engine.chunked_prefill_size = options.chunked_prefill_size;
  engine.max_step_time = options.max_step_time;
  engine.prefix_cache = !options.disable_prefix_cache;
  engine.kv_cache_bytes = graph.kv_cache_bytes;
  for (const int64_t id : config.eos_token_ids) {
    // One beyond the vocabulary never occurs.
    if (id < config.vocab_size) engine.eos_token_ids.push_back(static_cast<int32_t>(id));
  }
  engine.seed = options.random_seed >= 0 ? static_cast<uint64_t>(options.random_seed)
                                         : uint64_t{std::random_device()()};
  return engine;
}

// Members in the order of their dependence: the engine goes first, the checkpoint last.
class ModelStack final : public LoadedModel {
 public:
  absl::Status Load(const ExpertSourceMaker& make_source, const FrontendOptions& options,
                    const LoaderContext& context) {
    ATELIER_ASSIGN_OR_RETURN(checkpoint_, Checkpoint::Open(options.model_path));
    ATELIER_RETURN_IF_ERROR(VerifyTensors(*checkpoint_, Role::kFrontend));
    ATELIER_RETURN_IF_ERROR(RequireFrontendFetched(*checkpoint_));
    const ModelConfig& config = checkpoint_->config();
    ATELIER_RETURN_IF_ERROR(config.CheckHasExperts());
    ATELIER_ASSIGN_OR_RETURN(device_, CreateDevice(options, context));
    GraphOptions graph = GraphOptionsFor(options, config);
    ATELIER_ASSIGN_OR_RETURN(graph.device_experts, DeviceExpertsOf(options, config));
    // Before the workers, which may take minutes.
    ATELIER_RETURN_IF_ERROR(ModelGraph::CheckFits(config, *device_, graph));
    ATELIER_ASSIGN_OR_RETURN(source_, make_source(options, *checkpoint_, context));
    ATELIER_ASSIGN_OR_RETURN(
        graph_, ModelGraph::Create(*checkpoint_, *device_, source_->experts(), graph, context.clock,
                                   context.logger, context.metrics));
    ATELIER_ASSIGN_OR_RETURN(
        engine_, Engine::Create(EngineOptionsFor(options, config, graph), *graph_, context.clock,
                                context.logger, context.metrics));
    return absl::OkStatus();
  }

  Engine& engine() override { return *engine_; }
  ServedModel Describe() const override {
    ServedModel model;
    model.config = checkpoint_->config();
    model.weight_version = checkpoint_->digest();
    model.max_context = graph_->max_context();
    return model;
  }
  absl::Status Ready() const override { return source_->Ready(); }

 private:
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<ExpertSource> source_;
  std::unique_ptr<ModelGraph> graph_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LoadedModel>> LoadModelOver(const ExpertSourceMaker& make_source,
                                                           const FrontendOptions& options,
                                                           const LoaderContext& context) {
  auto stack = std::make_unique<ModelStack>();
  ATELIER_RETURN_IF_ERROR(stack->Load(make_source, options, context));
  return stack;
}

absl::StatusOr<std::unique_ptr<LoadedModel>> LoadModelStack(const FrontendOptions& options,
                                                            const LoaderContext& context) {
  return LoadModelOver(ConnectToWorkers, options, context);
}

}  // namespace atelier
