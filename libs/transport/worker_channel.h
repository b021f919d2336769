#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "libs/base/log.h"
#include "libs/transport/call_stream.h"
#include "libs/transport/security.h"
#include "libs/transport/worker_protocol.h"

namespace atelier {

// What a session needs of the network: Describe and one stream of calls, to one worker. Driven by
// one thread, which must not be one of the channel's own.
class WorkerChannel {
 public:
  using DescribeCallback = std::function<void(absl::StatusOr<WorkerDescription>)>;

  virtual ~WorkerChannel() = default;

  // One at a time. `done` is called exactly once, from any thread; soon after a CancelDescribe.
  virtual void Describe(absl::Duration timeout, DescribeCallback done) = 0;
  virtual void CancelDescribe() = 0;

  // Once. The observer must live until its OnStreamDone, which comes soon after a CancelStream.
  virtual std::shared_ptr<CallStream> OpenStream(CallStream::Observer& observer) = 0;
  virtual void CancelStream() = 0;
};

using WorkerChannelFactory =
    std::function<std::unique_ptr<WorkerChannel>(const std::string& address)>;

// For "host:port" or "unix:/path". Opens at once; what cannot be reached fails when it is used.
// `logger` must outlive the channels.
WorkerChannelFactory GrpcChannels(const ClientSecurity& security, const Logger& logger);

}  // namespace atelier
