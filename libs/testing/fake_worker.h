#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "libs/transport/worker_protocol.h"
#include "libs/transport/worker_server.h"

namespace atelier::testing {

// A description of a small model: 4 layers (0 to 3), 8 experts, top-2, H = 16, held whole.
WorkerDescription FakeDescription();

// A WorkerHandler whose expert e of any layer l multiplies its row by (e + 1) + 16 l (so sums say
// which experts were asked), a slice i/n of it by a share of that. Its behaviour can be changed
// while it runs. Thread-safe.
class FakeWorker final : public WorkerHandler {
 public:
  explicit FakeWorker(WorkerDescription description) : description_(std::move(description)) {}
  // Answers what is held, so that the callbacks' owners are let go.
  ~FakeWorker() override { Release(); }

  WorkerDescription Describe() const override;
  void Forward(ForwardRequest request, std::shared_ptr<const CallContext> context,
               std::function<void(ForwardReply)> reply) override;
  void OnRefused(const absl::Status& status) override;
  absl::StatusOr<int64_t> Drain(absl::Time deadline) override;

  void SetDescription(WorkerDescription description);
  // From now on calls are kept unanswered, as by a frozen worker …
  void Hold();
  // … until they are answered, last come first.
  void Release();
  // What is done to each answer before it leaves (peers that misbehave). Null = nothing.
  void SetTamper(std::function<void(ForwardReply&)> tamper);

  // Blocks until so many calls have come since the start; false after a minute.
  bool AwaitCalls(int count) const;
  // Blocks until some held call's context says that it was cancelled; false after a minute.
  bool AwaitCancelled() const;
  int calls() const;
  std::vector<absl::StatusCode> refused() const;  // of calls that never became one
  int64_t tokens() const;                         // rows of all calls so far
  ActivationForm last_form() const;               // of the rows of the call that came last

  // What the worker of `description` answers, computed directly.
  static ForwardReply Compute(const WorkerDescription& description, const ForwardRequest& request);

 private:
  struct Held {
    ForwardRequest request;
    std::shared_ptr<const CallContext> context;
    std::function<void(ForwardReply)> reply;
  };

  void Answer(Held held);

  mutable absl::Mutex mutex_;
  WorkerDescription description_ ABSL_GUARDED_BY(mutex_);
  bool holding_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Held> held_ ABSL_GUARDED_BY(mutex_);
  std::function<void(ForwardReply&)> tamper_ ABSL_GUARDED_BY(mutex_);
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<absl::StatusCode> refused_ ABSL_GUARDED_BY(mutex_);
  int64_t tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  ActivationForm last_form_ ABSL_GUARDED_BY(mutex_) = ActivationForm::kBf16;
};

// The server options that fit `description`, listening on `address`.
WorkerServerOptions FakeServerOptions(const WorkerDescription& description,
                                      const std::string& address);

}  // namespace atelier::testing
