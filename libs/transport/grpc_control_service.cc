#include "libs/transport/grpc_control_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/base/status_macros.h"
#include "libs/transport/codec.h"
#include "libs/transport/grpc_deadline.h"
#include "libs/transport/status_codes.h"

namespace atelier {
namespace {

constexpr size_t kMaxThreads = 4;

}  // namespace

GrpcControlService::~GrpcControlService() {
  std::vector<std::thread> threads;
  {
    absl::MutexLock lock(&mutex_);
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
}

grpc::ServerUnaryReactor* GrpcControlService::Describe(grpc::CallbackServerContext* context,
                                                       const v1::DescribeRequest*,
                                                       v1::DescribeResponse* response) {
  EncodeDescription(handler_.Describe(), response);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

// Requests and responses are gRPC's, which keeps both until Finish.
grpc::ServerUnaryReactor* GrpcControlService::Drain(grpc::CallbackServerContext* context,
                                                    const v1::DrainRequest*,
                                                    v1::DrainResponse* response) {
  const absl::Time deadline = FromGrpcDeadline(context->deadline(), clock_, longest_drain_);
  return RunOnThread(context, [this, response, deadline] {
    const absl::StatusOr<int64_t> drained = handler_.Drain(deadline);
    if (drained.ok()) response->set_calls_finished(static_cast<uint64_t>(*drained));
    return drained.status();
  });
}

grpc::ServerUnaryReactor* GrpcControlService::Load(grpc::CallbackServerContext* context,
                                                   const v1::LoadRequest* request,
                                                   v1::LoadResponse* response) {
  return Change(context, *request, response, &WorkerHandler::Load);
}

grpc::ServerUnaryReactor* GrpcControlService::Unload(grpc::CallbackServerContext* context,
                                                     const v1::UnloadRequest* request,
                                                     v1::UnloadResponse* response) {
  return Change(context, *request, response, &WorkerHandler::Unload);
}

template <typename Request, typename Response>
grpc::ServerUnaryReactor* GrpcControlService::Change(grpc::CallbackServerContext* context,
                                                     const Request& request, Response* response,
                                                     ShardChange change) {
  return RunOnThread(context, [this, &request, response, change]() -> absl::Status {
    ATELIER_ASSIGN_OR_RETURN(
        const std::vector<ShardSpec> shards,
        DecodeShards(request.shards(), static_cast<uint32_t>(handler_.Describe().num_experts)));
    ATELIER_ASSIGN_OR_RETURN(const WorkerDescription now, (handler_.*change)(shards));
    EncodeDescription(now, response->mutable_description());
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* GrpcControlService::RunOnThread(grpc::CallbackServerContext* context,
                                                          std::function<absl::Status()> work) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::MutexLock lock(&mutex_);
  JoinFinishedLocked();
  if (threads_.size() >= kMaxThreads) {
    reactor->Finish(ToGrpcStatus(absl::ResourceExhaustedError(
        absl::StrCat(kMaxThreads, " calls that wait are being answered already"))));
    return reactor;
  }
  threads_.emplace_back([this, reactor, work = std::move(work)] {
    const absl::Status status = work();
    {
      absl::MutexLock finished(&mutex_);
      finished_.push_back(std::this_thread::get_id());
    }
    reactor->Finish(ToGrpcStatus(status));
  });
  return reactor;
}

void GrpcControlService::JoinFinishedLocked() {
  for (const std::thread::id id : std::exchange(finished_, {})) {
    const auto it = std::find_if(threads_.begin(), threads_.end(),
                                 [id](const std::thread& thread) { return thread.get_id() == id; });
    it->join();
    threads_.erase(it);
  }
}

}  // namespace atelier
