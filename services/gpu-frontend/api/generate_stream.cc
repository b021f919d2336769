#include "services/gpu-frontend/api/generate_stream.h"

#include <utility>

#include "libs/base/check.h"
#include "services/gpu-frontend/api/grpc_status.h"

namespace atelier {

void CallCounter::Enter() {
  absl::MutexLock lock(&mutex_);
  ++calls_;
}

void CallCounter::Leave() {
  absl::MutexLock lock(&mutex_);
  ATELIER_CHECK(calls_ > 0);
  --calls_;
}

void CallCounter::AwaitNone() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(
      +[](int* calls) { return *calls == 0; }, &calls_));
}

GenerateStream::GenerateStream(ResponseOptions options, Engine* engine, CallCounter& calls)
    : id_(options.request_id), engine_(engine), calls_(calls), responses_(std::move(options)) {}

GenerateStream* GenerateStream::Start(MappedRequest mapped, Engine& engine, CallCounter& calls) {
  ResponseOptions options;
  options.request_id = mapped.request.id;
  options.n = mapped.request.sampling.n;
  options.stream = mapped.stream;
  options.stream_interval = mapped.stream_interval;
  options.logprobs = mapped.request.logprobs.enabled;
  auto stream = std::make_shared<GenerateStream>(std::move(options), &engine, calls);
  stream->self_ = stream;
  calls.Enter();
  stream->Submit(std::move(mapped.request));
  return stream.get();
}

GenerateStream* GenerateStream::Refuse(const absl::Status& status, Engine* engine,
                                       CallCounter& calls) {
  auto stream = std::make_shared<GenerateStream>(ResponseOptions(), engine, calls);
  stream->self_ = stream;
  calls.Enter();
  absl::MutexLock lock(&stream->mutex_);
  stream->Close(status);
  return stream.get();
}

// The engine may already deliver while this runs, and gRPC may already have cancelled: an Abort
// that came before the engine knew the id is made up for here.
void GenerateStream::Submit(GenerateRequest request) {
  const absl::Status status = engine_->Submit(std::move(request), shared_from_this());
  bool abort = false;
  {
    absl::MutexLock lock(&mutex_);
    submitted_ = status.ok();
    abort = submitted_ && cancelled_;
    if (!submitted_ && !closed_) Close(status);
  }
  if (abort) engine_->Abort(id_);
}

void GenerateStream::OnDelta(TokenDelta delta) {
  absl::MutexLock lock(&mutex_);
  if (closed_ || cancelled_) return;
  responses_.Add(std::move(delta));
  Advance();
}

void GenerateStream::OnError(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  error_ = std::move(status);
  Advance();
}

void GenerateStream::Advance() {
  if (writing_ || closed_) return;
  if (cancelled_) return Close(absl::CancelledError("the caller has gone"));
  if (error_.has_value()) return Close(*error_);
  if (responses_.Next(&message_)) {
    writing_ = true;
    StartWrite(&message_);
    return;
  }
  if (responses_.done()) Close(absl::OkStatus());
}

void GenerateStream::Close(const absl::Status& status) {
  closed_ = true;
  Finish(ToApiStatus(status));
}

void GenerateStream::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  writing_ = false;
  // A failed write means that the call is gone; OnCancel comes too and stops the engine.
  if (!ok) cancelled_ = true;
  Advance();
}

void GenerateStream::OnCancel() {
  bool abort = false;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    // Only a request of this call may be aborted: one that was refused for its id, or has ended,
    // would take another with the same id along.
    abort = submitted_ && !responses_.ended() && !error_.has_value();
    Advance();
  }
  if (abort) engine_->Abort(id_);
}

void GenerateStream::OnDone() {
  calls_.Leave();
  self_.reset();
}

}  // namespace atelier
