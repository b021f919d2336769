#pragma once

#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "libs/transport/codec.h"
#include "libs/transport/encoded_forward.h"

namespace atelier {

// Rows of one batch on their way to a worker: what a stream sends at once.
struct CallMessage {
  uint64_t id = 0;     // of the answer; never used before on the stream
  uint64_t epoch = 0;  // of the worker that is meant
  uint64_t timeout_us = 0;
  std::shared_ptr<const GrpcEncodedForward> request;
  int row_begin = 0;
  int row_end = 0;
  ActivationForm form = ActivationForm::kBf16;  // in which the worker may be sent rows as well
};

// The client's end of a worker's calls, whatever carries them. Thread-safe.
class CallStream {
 public:
  // Called from the stream's threads, or from inside AwaitBriefly.
  class Observer {
   public:
    virtual ~Observer() = default;
    virtual void OnStreamReady() = 0;
    // `decode` says what the worker answered to message `id`; called at most once, inside.
    virtual void OnAnswer(uint64_t id,
                          absl::FunctionRef<ForwardReply(const ExpectedSums&)> decode) = 0;
    // OK when the worker ended the stream in order. Once; only an AwaitBriefly that runs already
    // may bring an answer later.
    virtual void OnStreamDone(const absl::Status& status) = 0;
  };

  // The most bytes that one message may carry, of tensors and of sums.
  struct Limits {
    int64_t request_bytes = 0;
    int64_t answer_bytes = 0;
  };

  virtual ~CallStream() = default;

  // After OnStreamReady.
  virtual Limits limits() const = 0;
  // Returns at once. Dropped when the stream has ended; RESOURCE_EXHAUSTED when too many messages
  // wait for the worker already.
  virtual absl::Status Send(const CallMessage& message) = 0;
  // Takes the message back if it has not left yet; else tells the worker.
  virtual void Cancel(uint64_t id) = 0;
  // Looks for answers on the calling thread, until `over` or for a moment.
  virtual void AwaitBriefly(absl::FunctionRef<bool()> /*over*/) {}
};

}  // namespace atelier
