#include "libs/transport/worker_session.h"

#include <utility>

#include "absl/synchronization/mutex.h"

namespace atelier {

struct WorkerSession::Describe {
  mutable absl::Mutex mutex;
  bool answered ABSL_GUARDED_BY(mutex) = false;
  absl::StatusOr<WorkerDescription> answer ABSL_GUARDED_BY(mutex) = absl::UnknownError("");

  bool Answered() const {
    absl::MutexLock lock(&mutex);
    return answered;
  }
  void AwaitAnswer() {
    absl::MutexLock lock(&mutex);
    mutex.Await(absl::Condition(&answered));
  }
};

WorkerSession::WorkerSession(std::unique_ptr<WorkerChannel> channel, std::function<void()> wake)
    : wake_(std::move(wake)), channel_(std::move(channel)) {}

WorkerSession::~WorkerSession() {
  if (describe_ == nullptr) return;
  channel_->CancelDescribe();
  describe_->AwaitAnswer();
}

void WorkerSession::StartDescribe(absl::Duration timeout) {
  describe_ = std::make_unique<Describe>();
  channel_->Describe(timeout, [describe = describe_.get(),
                               wake = wake_](absl::StatusOr<WorkerDescription> answer) {
    // All under the lock: who sees the answer may destroy what `wake` refers to.
    absl::MutexLock lock(&describe->mutex);
    describe->answered = true;
    describe->answer = std::move(answer);
    wake();
  });
}

bool WorkerSession::DescribeAnswered() const {
  return describe_ != nullptr && describe_->Answered();
}

absl::StatusOr<WorkerDescription> WorkerSession::TakeDescription() {
  const std::unique_ptr<Describe> describe = std::move(describe_);
  absl::MutexLock lock(&describe->mutex);
  return std::move(describe->answer);
}

std::shared_ptr<CallStream> WorkerSession::OpenStream(CallStream::Observer& observer) {
  return channel_->OpenStream(observer);
}

void WorkerSession::CancelStream() { channel_->CancelStream(); }

}  // namespace atelier
