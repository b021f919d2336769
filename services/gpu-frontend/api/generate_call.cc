#include "services/gpu-frontend/api/generate_call.h"

#include <utility>

namespace atelier {
namespace {

ResponseOptions ResponseOptionsFor(const MappedRequest& mapped) {
  ResponseOptions options;
  options.request_id = mapped.request.id;
  options.n = mapped.request.sampling.n;
  options.stream = mapped.stream;
  options.stream_interval = mapped.stream_interval;
  options.logprobs = mapped.request.logprobs.enabled;
  return options;
}

}  // namespace

GenerateCall::GenerateCall(const MappedRequest& mapped, Engine& engine, ResponseWriter& writer)
    : id_(mapped.request.id),
      engine_(engine),
      writer_(writer),
      responses_(ResponseOptionsFor(mapped)) {}

// The engine may already deliver while this runs, and the caller may have gone: an Abort that came
// before the engine knew the id is made up for here.
void GenerateCall::Submit(GenerateRequest request) {
  const absl::Status status = engine_.Submit(std::move(request), shared_from_this());
  bool abort = false;
  {
    absl::MutexLock lock(&mutex_);
    submitted_ = status.ok();
    abort = submitted_ && cancelled_;
    if (!submitted_ && !closed_) Close(status);
  }
  if (abort) engine_.Abort(id_);
}

void GenerateCall::OnDelta(TokenDelta delta) {
  absl::MutexLock lock(&mutex_);
  if (closed_ || cancelled_) return;
  responses_.Add(std::move(delta));
  Advance();
}

void GenerateCall::OnError(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  error_ = std::move(status);
  Advance();
}

void GenerateCall::Advance() {
  if (writing_ || closed_) return;
  if (cancelled_) return Close(absl::CancelledError("the caller has gone"));
  if (error_.has_value()) return Close(*error_);
  if (responses_.Next(&message_)) {
    writing_ = true;
    writer_.Write(&message_);
    return;
  }
  if (responses_.done()) Close(absl::OkStatus());
}

void GenerateCall::Close(const absl::Status& status) {
  closed_ = true;
  writer_.Finish(status);
}

void GenerateCall::OnWritten(bool ok) {
  absl::MutexLock lock(&mutex_);
  writing_ = false;
  // A failed write means that the call is gone; OnCancelled comes too and stops the engine.
  if (!ok) cancelled_ = true;
  Advance();
}

void GenerateCall::OnCancelled() {
  bool abort = false;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    // Only a request of this call may be aborted: one that was refused for its id, or has ended,
    // would take another with the same id along.
    abort = submitted_ && !responses_.ended() && !error_.has_value();
    Advance();
  }
  if (abort) engine_.Abort(id_);
}

}  // namespace atelier
