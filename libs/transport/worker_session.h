#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "libs/transport/call_stream.h"
#include "libs/transport/worker_channel.h"
#include "libs/transport/worker_protocol.h"

namespace atelier {

// One connection to a worker from its first byte to its end: a stream of calls and Describe, for
// first contact and as a heartbeat. Owned and driven by one thread, which must not be one of the
// channel's own. The stream must have ended before destruction.
class WorkerSession {
 public:
  // `wake` is called from the channel's threads when a Describe has been answered; it must not call
  // back.
  WorkerSession(std::unique_ptr<WorkerChannel> channel, std::function<void()> wake);
  ~WorkerSession();
  WorkerSession(const WorkerSession&) = delete;
  WorkerSession& operator=(const WorkerSession&) = delete;

  // One at a time.
  void StartDescribe(absl::Duration timeout);
  bool describing() const { return describe_ != nullptr; }
  bool DescribeAnswered() const;
  // The answer; a next Describe may be started after.
  absl::StatusOr<WorkerDescription> TakeDescription();

  // Once. The observer must live until its OnStreamDone.
  std::shared_ptr<CallStream> OpenStream(CallStream::Observer& observer);
  // Ends the stream, if one was opened: OnStreamDone follows soon.
  void CancelStream();

 private:
  struct Describe;

  const std::function<void()> wake_;
  const std::unique_ptr<WorkerChannel> channel_;
  std::unique_ptr<Describe> describe_;
};

}  // namespace atelier
