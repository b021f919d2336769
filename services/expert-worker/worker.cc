#include "services/expert-worker/worker.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "libs/base/command_line.h"
#include "libs/base/endpoint.h"
#include "libs/base/ready_file.h"
#include "libs/base/status_macros.h"
#include "libs/base/version.h"
#include "libs/checkpoint/expert_set_file.h"
#include "libs/checkpoint/mapped_file.h"
#include "libs/kernels/cpu_features.h"
#include "libs/model/placement_file.h"
#include "libs/numa/huge_pages.h"
#include "libs/numa/node_memory.h"
#include "libs/numa/topology.h"
#include "services/expert-worker/choose_method.h"
#include "services/expert-worker/shard_plan.h"

namespace atelier {
namespace {

// For the last bytes of answers whose calls have ended.
constexpr absl::Duration kFlushGrace = absl::Seconds(2);

// Of this process; 0 means "any" on the wire.
uint64_t RandomEpoch() {
  std::random_device entropy;
  uint64_t epoch = 0;
  while (epoch == 0) epoch = (uint64_t{entropy()} << 32) | entropy();
  return epoch;
}

// Of the layer that has most of them.
int ShardsPerLayer(const std::vector<ShardSpec>& shards) {
  std::map<int, int> count;
  int most = 0;
  for (const ShardSpec& shard : shards) {
    for (const int layer : shard.layers) most = std::max(most, ++count[layer]);
  }
  return most;
}

std::string ShardNames(const std::vector<ShardSpec>& shards) {
  return absl::StrJoin(shards, "; ", [](std::string* out, const ShardSpec& shard) {
    absl::StrAppend(out, ShardName(shard));
  });
}

}  // namespace

Worker::Worker(const WorkerOptions& options, Clock& clock, const Logger& logger)
    : options_(options), clock_(clock), logger_(logger), metrics_(registry_), lifecycle_(logger) {}

Worker::~Worker() {
  observability_.reset();  // its threads ask the lifecycle
  shm_server_.reset();     // its calls use the service
  server_.reset();         // likewise
}

absl::StatusOr<std::unique_ptr<Worker>> Worker::Start(const WorkerOptions& options, Clock& clock,
                                                      const Logger& logger) {
  std::unique_ptr<Worker> worker(new Worker(options, clock, logger));
  ATELIER_RETURN_IF_ERROR(worker->OpenModel());
  ATELIER_RETURN_IF_ERROR(worker->OpenPorts());
  return worker;
}

absl::Status Worker::OpenModel() {
  const Topology topology = Topology::Detect();
  ATELIER_ASSIGN_OR_RETURN(const CpuIsa cap, ParseCpuIsa(options_.cpu_isa));
  const CpuFeatures features = CpuFeatures::Detect();
  ATELIER_ASSIGN_OR_RETURN(KernelTable kernels, KernelTable::Select(features, cap));
  if (features.amx_refusal != 0 && cap == CpuIsa::kAuto) {
    logger_.Warning("amx_not_used", {Kv("lacks", AmxRefusalText(features))});
  }
  kernels_ = std::make_unique<KernelTable>(std::move(kernels));
  const NodeArenaOptions arena{options_.numa_node, options_.threads, options_.pin_threads};
  absl::StatusOr<std::unique_ptr<NodeArena>> created = NodeArena::Create(arena, topology, logger_);
  ATELIER_RETURN_IF_ERROR(NameFlags(
      created.status(), {{"num_threads=", "--threads="}, {"numa_node=", "--numa-node="}}));
  arena_ = *std::move(created);
  logger_.Info("worker_starting",
               {Kv("version", Version()), Kv("options", options_.ToString()),
                Kv("topology", topology.ToString()), Kv("node", arena_->numa_node()),
                Kv("threads", arena_->num_threads())});
  ATELIER_ASSIGN_OR_RETURN(checkpoint_, Checkpoint::Open(options_.model_path));
  absl::StatusOr<LayerMethods> methods = ChooseMethods(*checkpoint_, options_.RequestedMethod());
  ATELIER_RETURN_IF_ERROR(NameFlags(methods.status(), {{"method=", "--method="}}));
  methods_ = *std::move(methods);
  ATELIER_RETURN_IF_ERROR(ReadPlacement());
  return ReadSkippedExperts();
}

absl::Status Worker::ReadPlacement() {
  const int num_experts = checkpoint_->config().moe.num_experts;
  shards_ = {options_.Shard(num_experts)};
  if (options_.placement.empty()) return absl::OkStatus();
  const std::string flag = absl::StrCat("--placement=", options_.placement);
  const auto file = MappedFile::OpenSmall(options_.placement, kMaxPlacementFileBytes);
  if (!file.ok()) {
    return absl::Status(file.status().code(), absl::StrCat(flag, ": ", file.status().message()));
  }
  ATELIER_ASSIGN_OR_RETURN(const PlacementFile placement, PlacementFile::Parse(file->text(), flag));
  const std::string& digest = placement.model_digest;
  if (placement.num_experts != num_experts ||
      (!digest.empty() && digest != checkpoint_->digest())) {
    return absl::FailedPreconditionError(absl::StrCat(
        flag, ": is of a model with ", placement.num_experts, " experts and digest ", digest,
        ", but this one has ", num_experts, " and ", checkpoint_->digest(), ": plan again"));
  }
  const absl::StatusOr<const PlacedWorker*> worker = placement.Find(options_.worker);
  if (!worker.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--worker=", options_.worker, ": ", flag, ": ", worker.status().message()));
  }
  shards_ = (*worker)->shards;
  return shards_.empty() ? absl::InvalidArgumentError(absl::StrCat(
                               "--worker=", options_.worker, ": ", flag, " gives it no experts"))
                         : absl::OkStatus();
}

absl::Status Worker::ReadSkippedExperts() {
  if (options_.skip_experts.empty()) return absl::OkStatus();
  absl::StatusOr<ExpertSet> skipped = ReadExpertSet(options_.skip_experts, checkpoint_->config());
  if (!skipped.ok()) {
    return absl::Status(
        skipped.status().code(),
        absl::StrCat("--skip-experts=", options_.skip_experts, ": ", skipped.status().message()));
  }
  skipped_ = *std::move(skipped);
  return absl::OkStatus();
}

absl::Status Worker::NameShardFlags(const absl::Status& status) const {
  const std::string method = absl::StrCat("--method=", options_.method, ": weight matrix ");
  if (options_.placement.empty()) {
    return NameFlags(
        status,
        {{"experts ", "--experts="}, {"slice ", "--shard-slice="}, {"weight matrix ", method}});
  }
  const std::string where =
      absl::StrCat("--placement=", options_.placement, ": worker ", options_.worker, ": ");
  return NameFlags(status, {{"weight matrix ", method}, {"", where}});
}

absl::StatusOr<WorkerService::Served> Worker::DescribeServed() const {
  const ModelConfig& config = checkpoint_->config();
  const absl::StatusOr<std::vector<ShardPlan>> planned = PlanShards(config, shards_, methods_);
  ATELIER_RETURN_IF_ERROR(NameShardFlags(planned.status()));
  WorkerService::Served served;
  WorkerDescription& description = served.description;
  description.version = std::string(Version());
  description.epoch = RandomEpoch();
  description.model_digest = checkpoint_->digest();
  description.model_type = config.model_type;
  description.method = MethodNames(config, methods_);
  description.isa = kernels_->isa((*planned)[0].methods[0].gate);
  description.quantized_rows = CommonInt8Form(config, methods_);
  description.hidden_size = config.hidden_size;
  description.num_experts = config.moe.num_experts;
  description.top_k = config.moe.top_k;
  description.intermediate_size = config.moe.intermediate_size;
  for (const ShardPlan& plan : *planned) {
    description.shards.push_back(plan.spec);
    served.expert_bytes.push_back(plan.bytes() / (plan.num_layers() * plan.num_experts()));
  }
  served.skipped = skipped_;
  description.limits = {options_.max_tokens_per_call, options_.max_message_bytes,
                        options_.max_queued_calls};
  return served;
}

absl::Status Worker::OpenPorts() {
  ATELIER_ASSIGN_OR_RETURN(WorkerService::Served served, DescribeServed());
  WorkerServerOptions serving;
  serving.listen = options_.listen;
  serving.max_message_bytes = options_.max_message_bytes;
  serving.hidden_size = served.description.hidden_size;
  serving.num_experts = served.description.num_experts;
  serving.quantized_rows = served.description.quantized_rows;
  serving.max_tokens_per_call = options_.max_tokens_per_call;
  serving.default_timeout = options_.default_timeout;
  serving.security = options_.security;
  BatcherOptions batching;
  batching.max_queued_calls = options_.max_queued_calls;
  batching.max_queued_tokens = options_.max_queued_tokens;
  batching.max_batch_tokens = options_.max_tokens_per_call;
  service_ = std::make_unique<WorkerService>(
      std::move(served), batching, WorkerService::Dependencies{lifecycle_, metrics_, clock_});
  ATELIER_ASSIGN_OR_RETURN(server_, WorkerServer::Start(serving, *service_, clock_, logger_));
  if (!options_.shm_listen.empty()) ATELIER_RETURN_IF_ERROR(ShareMemory());
  lifecycle_.Observe([this](WorkerState state) {
    metrics_.state.Set(static_cast<double>(state));
    server_->SetServing(state == WorkerState::kServing);
  });
  ObservabilityOptions observability;
  ATELIER_ASSIGN_OR_RETURN(observability.listen, ParseEndpoint(options_.metrics_address));
  observability.metrics = &registry_;
  observability.ready = [this] { return lifecycle_.Ready(); };
  ATELIER_ASSIGN_OR_RETURN(observability_, ObservabilityServer::Start(observability));
  return absl::OkStatus();
}

absl::Status Worker::ShareMemory() {
  const WorkerDescription described = service_->Describe();
  ShmServerOptions sharing;
  sharing.path = options_.shm_listen;
  sharing.allowed_uids = options_.ShmAllowUids();
  sharing.max_clients = options_.shm_max_clients;
  sharing.bytes_per_client = options_.shm_bytes_per_client;
  sharing.spin = options_.shm_spin;
  sharing.hidden_size = described.hidden_size;
  sharing.num_experts = described.num_experts;
  sharing.top_k = described.top_k;
  sharing.shards_per_layer = ShardsPerLayer(described.shards);
  sharing.max_tokens_per_call = options_.max_tokens_per_call;
  sharing.default_timeout = options_.default_timeout;
  const int node = arena_->numa_node();
  sharing.placement.huge_pages_free = [node](size_t bytes) {
    return FreeHugePages(node, "/") >= static_cast<int64_t>(bytes >> 21);
  };
  sharing.placement.bind = [this, node](void* data, size_t bytes) {
    if (node >= 0 && MemorySystem::Real().bind(data, bytes, node) != 0) {
      logger_.Warning("shm_not_bound", {Kv("node", node), Kv("reason", std::strerror(errno))});
    }
  };
  absl::StatusOr<std::unique_ptr<ShmWorkerServer>> server =
      ShmWorkerServer::Start(sharing, *service_, clock_, logger_);
  ATELIER_RETURN_IF_ERROR(
      NameFlags(server.status(), {{"shm_bytes_per_client=", "--shm-bytes-per-client="}}));
  shm_server_ = *std::move(server);
  return absl::OkStatus();
}

absl::Status Worker::Load() {
  lifecycle_.Advance(WorkerState::kLoading);
  absl::Status status = LoadAndServe();
  if (!status.ok()) lifecycle_.Advance(WorkerState::kStopped);
  return status;
}

absl::Status Worker::LoadAndServe() {
  const absl::Time start = clock_.Now();
  ExpertStoreOptions loading;
  loading.methods = methods_;
  loading.shards = shards_;
  loading.skipped = skipped_;
  loading.store_dir = options_.store_dir;
  loading.populate = options_.populate;
  loading.cancelled = [this] { return loading_cancelled_.load(); };
  host_ = std::make_unique<StoreHost>(
      std::move(loading),
      StoreHost::Context{*checkpoint_, *kernels_, *arena_, clock_, logger_, [this](int64_t bytes) {
                           metrics_.weight_bytes.Set(static_cast<double>(bytes));
                         }});
  ATELIER_ASSIGN_OR_RETURN(HeldShards held, host_->Start());
  const int64_t bytes = host_->bytes();
  // What a file lies on is the choice of its file system.
  if (options_.store_dir.empty()) LogHugePages(HugePageUse::Read(), bytes, logger_);
  const std::string shards = ShardNames(held.shards);
  service_->Serve(
      std::move(held.executor), [this] { arena_->BindCallingThread(); }, host_.get());
  logger_.Info("worker_serving",
               {Kv("listen", absl::StrJoin(addresses(), ",")), Kv("metrics", metrics_address()),
                Kv("method", MethodNames(checkpoint_->config(), methods_)),
                Kv("isa", service_->Describe().isa), Kv("shard", shards), Kv("bytes", bytes),
                Kv("seconds", absl::ToDoubleSeconds(clock_.Now() - start))});
  if (options_.ready_file.empty()) return absl::OkStatus();
  return WriteReadyFile(options_.ready_file, {{"listen", absl::StrJoin(addresses(), ",")},
                                              {"metrics", metrics_address()}});
}

bool Worker::Drain() {
  if (!options_.ready_file.empty()) RemoveReadyFile(options_.ready_file);
  const absl::StatusOr<int64_t> finished = service_->Drain(clock_.Now() + options_.drain_timeout);
  if (!finished.ok()) {
    logger_.Warning("drain_incomplete", {Kv("reason", finished.status().message())});
    return false;
  }
  logger_.Info("worker_drained", {Kv("calls", *finished)});
  service_->Stop();
  if (shm_server_ != nullptr) shm_server_->Shutdown(kFlushGrace);
  server_->Shutdown(kFlushGrace);
  lifecycle_.Advance(WorkerState::kStopped);
  return true;
}

}  // namespace atelier
