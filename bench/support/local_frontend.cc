// gpu-frontend as it is, but for where its routed experts are: in this process, or behind one bare
// connection without any of ExpertClient's care. What `bench serving` compares the real one with.
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "libs/base/command_line.h"
#include "libs/base/heap.h"
#include "libs/base/status_macros.h"
#include "libs/base/termination.h"
#include "libs/kernels/cpu_features.h"
#include "libs/kernels/kernel_table.h"
#include "libs/numa/node_arena.h"
#include "libs/transport/worker_connection.h"
#include "services/expert-worker/choose_method.h"
#include "services/expert-worker/executor.h"
#include "services/expert-worker/expert_store.h"
#include "services/gpu-frontend/flags.h"
#include "services/gpu-frontend/frontend.h"
#include "services/gpu-frontend/model_stack.h"

namespace atelier {
namespace {

size_t SizeOf(const TokenBatch& batch) {
  return static_cast<size_t>(batch.num_tokens) * static_cast<size_t>(batch.hidden_size);
}

class ComputedExperts final : public ExpertsInFlight {
 public:
  explicit ComputedExperts(const std::vector<float>& sums) : sums_(sums) {}
  absl::Status Wait(float* out) override {
    std::memcpy(out, sums_.data(), sums_.size() * sizeof(float));
    return absl::OkStatus();
  }

 private:
  const std::vector<float>& sums_;
};

// The worker's executor, on the thread that asks: no queue, no hand-over, nothing between.
class ExpertsInProcess final : public ExpertSource, public RemoteExperts {
 public:
  absl::Status Load(const FrontendOptions& options, const Checkpoint& checkpoint,
                    const LoaderContext& context) {
    ATELIER_ASSIGN_OR_RETURN(const CpuIsa cap, ParseCpuIsa(options.cpu_isa));
    ATELIER_ASSIGN_OR_RETURN(KernelTable kernels, KernelTable::Select(CpuFeatures::Detect(), cap));
    kernels_ = std::make_unique<KernelTable>(std::move(kernels));
    const NodeArenaOptions arena{-1, options.threads, false};
    ATELIER_ASSIGN_OR_RETURN(arena_, NodeArena::Create(arena, Topology::Detect(), context.logger));
    ExpertStoreOptions store;
    ATELIER_ASSIGN_OR_RETURN(store.methods, ChooseMethods(checkpoint, std::nullopt));
    store.shards = {ShardSpec{{}, 0, checkpoint.config().moe.num_experts, 0, 1}};
    ATELIER_ASSIGN_OR_RETURN(
        store_, ExpertStore::Load(checkpoint, store, *arena_, context.clock, context.logger));
    executor_ = CreateExecutor(*store_, *kernels_, *arena_);
    return absl::OkStatus();
  }

  RemoteExperts& experts() override { return *this; }
  absl::Status Ready() const override { return absl::OkStatus(); }

  absl::StatusOr<std::unique_ptr<ExpertsInFlight>> Begin(int layer, const TokenBatch& batch,
                                                         const Routing& routing, bool) override {
    sums_.resize(SizeOf(batch));
    executor_->Forward({layer, batch, routing}, {sums_.data()});
    return std::make_unique<ComputedExperts>(sums_);
  }

 private:
  std::unique_ptr<KernelTable> kernels_;
  std::unique_ptr<NodeArena> arena_;
  std::unique_ptr<ExpertStore> store_;
  std::unique_ptr<Executor> executor_;
  std::vector<float> sums_;
};

class BareCall final : public ExpertsInFlight {
 public:
  BareCall(WorkerConnection& connection, std::shared_ptr<const EncodedForward> request,
           absl::Time deadline)
      : in_flight_(connection.Forward(std::move(request), deadline, [this](ForwardReply reply) {
          reply_ = std::move(reply);
          answered_.Notify();
        })) {}

  absl::Status Wait(float* out) override {
    in_flight_->AwaitBriefly();
    answered_.WaitForNotification();
    ATELIER_RETURN_IF_ERROR(reply_.status);
    if (reply_.sums.size() != 1) return absl::InternalError("one shard was expected");
    std::memcpy(out, reply_.sums[0].data.data(), reply_.sums[0].data.size());
    return absl::OkStatus();
  }

 private:
  ForwardReply reply_;
  absl::Notification answered_;
  std::unique_ptr<ForwardInFlight> in_flight_;  // destroyed first
};

// One worker, which holds everything in one shard, and nobody to ask when it fails.
class ExpertsOverConnection final : public ExpertSource, public RemoteExperts {
 public:
  absl::Status Connect(const FrontendOptions& options, const LoaderContext& context) {
    clock_ = &context.clock;
    timeout_ = options.worker_timeout;
    absl::Notification usable;
    connection_ = WorkerConnection::Create(
        options.workers[0], context.clock, context.logger,
        [&usable, heard = false](const absl::StatusOr<WorkerDescription>& news) mutable {
          if (news.ok() && !std::exchange(heard, true)) usable.Notify();
        });
    if (usable.WaitForNotificationWithTimeout(options.connect_timeout)) return absl::OkStatus();
    connection_ = nullptr;
    return absl::UnavailableError(absl::StrCat(options.workers[0], " does not answer"));
  }

  RemoteExperts& experts() override { return *this; }
  absl::Status Ready() const override { return absl::OkStatus(); }

  absl::StatusOr<std::unique_ptr<ExpertsInFlight>> Begin(int layer, const TokenBatch& batch,
                                                         const Routing& routing,
                                                         bool prefill) override {
    ForwardEncoding encoding;
    encoding.layer = layer;
    encoding.batch = batch;
    encoding.routing = routing;
    encoding.priority = prefill ? CallPriority::kPrefill : CallPriority::kDecode;
    return std::make_unique<BareCall>(*connection_, EncodeForward(encoding),
                                      clock_->Now() + timeout_);
  }

 private:
  Clock* clock_ = nullptr;
  absl::Duration timeout_;
  std::unique_ptr<WorkerConnection> connection_;
};

absl::StatusOr<std::unique_ptr<ExpertSource>> LoadInProcess(const FrontendOptions& options,
                                                            const Checkpoint& checkpoint,
                                                            const LoaderContext& context) {
  auto experts = std::make_unique<ExpertsInProcess>();
  ATELIER_RETURN_IF_ERROR(experts->Load(options, checkpoint, context));
  return experts;
}

absl::StatusOr<std::unique_ptr<ExpertSource>> ConnectBare(const FrontendOptions& options,
                                                          const Checkpoint&,
                                                          const LoaderContext& context) {
  auto experts = std::make_unique<ExpertsOverConnection>();
  ATELIER_RETURN_IF_ERROR(experts->Connect(options, context));
  return experts;
}

int Serve(const ExpertSourceMaker& make_source, const FrontendOptions& options,
          TerminationSignals& signals) {
  SystemClock clock;
  const Logger logger(Severity::kWarning);
  const auto load = [&](const FrontendOptions& model_options, const LoaderContext& context) {
    return LoadModelOver(make_source, model_options, context);
  };
  auto frontend = Frontend::Start(options, load, clock, logger);
  const absl::Status served = frontend.ok() ? (*frontend)->Load() : frontend.status();
  if (!served.ok()) {
    std::cerr << "bench_local_frontend: " << served.ToString() << "\n";
    return 1;
  }
  signals.Wait();
  (*frontend)->Drain([] { return true; });
  return 0;
}

}  // namespace
}  // namespace atelier

int main(int argc, char** argv) {
  atelier::KeepFreedMemory();
  atelier::TerminationSignals signals;
  const std::string where = argc > 1 ? argv[1] : "";
  if (where != "in-process" && where != "connection") {
    std::cerr << "usage: bench_local_frontend in-process|connection [flags of gpu-frontend]\n"
                 "Started by scripts/bench serving.\n";
    return 2;
  }
  atelier::FrontendOptions options;
  const atelier::FlagTable flags = atelier::FrontendFlags(&options);
  if (const auto status = atelier::AnswerCommandLine("bench_local_frontend", flags, argc - 1,
                                                     argv + 1, [&] { return options.Resolve(); })) {
    return *status;
  }
  return atelier::Serve(where == "in-process" ? atelier::LoadInProcess : atelier::ConnectBare,
                        options, signals);
}
