#include "libs/transport/grpc_control_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/transport/codec.h"
#include "libs/transport/grpc_deadline.h"
#include "libs/transport/status_codes.h"

namespace atelier {
namespace {

constexpr size_t kMaxDrains = 4;

}  // namespace

GrpcControlService::~GrpcControlService() {
  std::vector<std::thread> drains;
  {
    absl::MutexLock lock(&mutex_);
    drains.swap(drains_);
  }
  for (std::thread& thread : drains) thread.join();
}

grpc::ServerUnaryReactor* GrpcControlService::Describe(grpc::CallbackServerContext* context,
                                                       const v1::DescribeRequest*,
                                                       v1::DescribeResponse* response) {
  EncodeDescription(handler_.Describe(), response);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* GrpcControlService::Drain(grpc::CallbackServerContext* context,
                                                    const v1::DrainRequest*,
                                                    v1::DrainResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::Time deadline = FromGrpcDeadline(context->deadline(), clock_, longest_drain_);
  absl::MutexLock lock(&mutex_);
  JoinFinishedLocked();
  if (drains_.size() >= kMaxDrains) {
    reactor->Finish(ToGrpcStatus(
        absl::ResourceExhaustedError(absl::StrCat(kMaxDrains, " calls of Drain wait already"))));
    return reactor;
  }
  drains_.emplace_back([=, this] { RunDrain(reactor, response, deadline); });
  return reactor;
}

// The reactor and the response are gRPC's, which keeps both until Finish.
void GrpcControlService::RunDrain(grpc::ServerUnaryReactor* reactor, v1::DrainResponse* response,
                                  absl::Time deadline) {
  const absl::StatusOr<int64_t> drained = handler_.Drain(deadline);
  if (drained.ok()) response->set_calls_finished(static_cast<uint64_t>(*drained));
  {
    absl::MutexLock lock(&mutex_);
    finished_.push_back(std::this_thread::get_id());
  }
  reactor->Finish(ToGrpcStatus(drained.status()));
}

void GrpcControlService::JoinFinishedLocked() {
  for (const std::thread::id id : std::exchange(finished_, {})) {
    const auto it = std::find_if(drains_.begin(), drains_.end(),
                                 [id](const std::thread& thread) { return thread.get_id() == id; });
    it->join();
    drains_.erase(it);
  }
}

}  // namespace atelier
