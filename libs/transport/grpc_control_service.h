#pragma once

#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "libs/base/clock.h"
#include "libs/transport/worker_protocol.h"
#include "proto/atelier/v1/control.grpc.pb.h"

namespace atelier {

// WorkerControl over a WorkerHandler. Thread-safe; outlives the gRPC server that it is registered
// with. Each Drain waits on a thread of its own, few at a time; the destructor joins them.
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

 private:
  void RunDrain(grpc::ServerUnaryReactor* reactor, v1::DrainResponse* response,
                absl::Time deadline);
  void JoinFinishedLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  WorkerHandler& handler_;
  Clock& clock_;
  const absl::Duration longest_drain_;

  absl::Mutex mutex_;
  std::vector<std::thread> drains_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread::id> finished_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace atelier
