#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "libs/base/clock.h"
#include "libs/transport/worker_protocol.h"
#include "proto/atelier/v1/control.grpc.pb.h"

namespace atelier {

// WorkerControl over a WorkerHandler. Thread-safe; outlives the gRPC server that it is registered
// with. Each Drain, Load and Unload waits on a thread of its own, few at a time; the destructor
// joins them.
class GrpcControlService final : public v1::WorkerControl::CallbackService {
 public:
  GrpcControlService(WorkerHandler& handler, Clock& clock, absl::Duration longest_drain)
      : handler_(handler), clock_(clock), longest_drain_(longest_drain) {}
  ~GrpcControlService() override;

  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const v1::DescribeRequest* request,
                                     v1::DescribeResponse* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override;

  grpc::ServerUnaryReactor* Load(grpc::CallbackServerContext* context,
                                 const v1::LoadRequest* request,
                                 v1::LoadResponse* response) override;
  grpc::ServerUnaryReactor* Unload(grpc::CallbackServerContext* context,
                                   const v1::UnloadRequest* request,
                                   v1::UnloadResponse* response) override;

 private:
  using ShardChange =
      absl::StatusOr<WorkerDescription> (WorkerHandler::*)(const std::vector<ShardSpec>&);

  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* Change(grpc::CallbackServerContext* context, const Request& request,
                                   Response* response, ShardChange change);
  // Finishes the call with what `work` returns, on a thread of its own.
  grpc::ServerUnaryReactor* RunOnThread(grpc::CallbackServerContext* context,
                                        std::function<absl::Status()> work);
  void JoinFinishedLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  WorkerHandler& handler_;
  Clock& clock_;
  const absl::Duration longest_drain_;

  absl::Mutex mutex_;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread::id> finished_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace atelier
