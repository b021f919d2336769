#pragma once

#include <memory>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "libs/transport/forward_stream.h"
#include "proto/atelier/v1/expert.grpc.pb.h"

namespace atelier {

// ExpertService over a WorkerHandler. Thread-safe; outlives the gRPC server that it is registered
// with. Streams carry raw messages: gRPC would take one that it cannot parse for the stream's end.
class GrpcExpertService final
    : public v1::ExpertService::WithCallbackMethod_Forward<
          v1::ExpertService::WithRawCallbackMethod_ForwardStream<v1::ExpertService::Service>> {
 public:
  explicit GrpcExpertService(const ForwardServing& serving) : serving_(serving) {}

  // Streams end as soon as nothing is in flight on them, new ones at once.
  void BeginShutdown();

  grpc::ServerUnaryReactor* Forward(grpc::CallbackServerContext* context,
                                    const v1::ForwardRequest* request,
                                    v1::ForwardResponse* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ForwardStream(
      grpc::CallbackServerContext* context) override;

 private:
  const ForwardServing serving_;
  absl::Mutex mutex_;
  std::vector<std::weak_ptr<atelier::ForwardStream>> streams_ ABSL_GUARDED_BY(mutex_);
  bool shutting_down_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace atelier
