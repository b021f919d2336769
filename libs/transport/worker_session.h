#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "libs/transport/client_stream.h"
#include "libs/transport/worker_protocol.h"
#include "proto/atelier/v1/control.grpc.pb.h"

namespace atelier {

// One connection to a worker from its first byte to its end: a channel, a stream of calls on it and
// Describe, for first contact and as a heartbeat. Owned and driven by one thread, which must not be
// one of gRPC's: the last owner of a channel stops gRPC's threads. Close before destruction.
class WorkerSession {
 public:
  // `wake` is called from gRPC's threads when a Describe has been answered; it must not call back.
  WorkerSession(const std::string& address, std::function<void()> wake);
  ~WorkerSession();
  WorkerSession(const WorkerSession&) = delete;
  WorkerSession& operator=(const WorkerSession&) = delete;

  // One at a time.
  void StartDescribe(absl::Duration timeout);
  bool describing() const { return describe_ != nullptr; }
  bool DescribeAnswered() const;
  // The answer; a next Describe may be started after.
  absl::StatusOr<WorkerDescription> TakeDescription();

  // The observer must live until its OnStreamDone.
  std::shared_ptr<ClientStream> OpenStream(ClientStream::Observer& observer);
  // Ends the stream, if one was opened: OnStreamDone follows soon.
  void CancelStream();

 private:
  struct Describe;

  const std::function<void()> wake_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::WorkerControl::Stub> control_;
  ForwardStreamStub forward_;
  std::unique_ptr<Describe> describe_;
  std::unique_ptr<grpc::ClientContext> stream_context_;
};

}  // namespace atelier
