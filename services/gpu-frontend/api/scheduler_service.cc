#include "services/gpu-frontend/api/scheduler_service.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/base/quoted.h"
#include "libs/base/status_macros.h"
#include "services/gpu-frontend/api/generate_call.h"
#include "services/gpu-frontend/api/grpc_status.h"
#include "services/gpu-frontend/api/info_mapping.h"

namespace atelier {
namespace {

namespace wire = ::sglang::grpc::scheduler;
namespace common = ::smg::grpc::common;

constexpr size_t kTokenizerChunkBytes = size_t{64} << 10;

// gRPC's side of a Generate call; gRPC deletes it through OnDone. Initial metadata leaves with the
// first message.
class GenerateReactor final : public grpc::ServerWriteReactor<wire::GenerateResponse>,
                              public ResponseWriter {
 public:
  explicit GenerateReactor(CallCounter& calls) : calls_(calls) { calls_.Enter(); }

  void Start(MappedRequest mapped, Engine& engine) {
    call_ = std::make_shared<GenerateCall>(mapped, engine, *this);
    call_->Submit(std::move(mapped.request));
  }
  // Instead of Start.
  void Refuse(const absl::Status& status) { Finish(status); }

  void Write(const wire::GenerateResponse* message) override { StartWrite(message); }
  void Finish(const absl::Status& status) override {
    ServerWriteReactor::Finish(ToApiStatus(status));
  }

  void OnWriteDone(bool ok) override { call_->OnWritten(ok); }
  void OnCancel() override {
    if (call_ != nullptr) call_->OnCancelled();
  }
  void OnDone() override {
    calls_.Leave();
    delete this;
  }

 private:
  CallCounter& calls_;
  std::shared_ptr<GenerateCall> call_;  // also the engine's, until its last event
};

// Sends an archive in pieces; `archive` is the backend's and outlives the call.
class TokenizerStream final : public grpc::ServerWriteReactor<common::GetTokenizerChunk> {
 public:
  TokenizerStream(const absl::StatusOr<TokenizerArchive>& archive, CallCounter& calls)
      : archive_(archive), calls_(calls) {
    calls_.Enter();
    if (archive_.ok()) {
      WriteNext();
    } else {
      Finish(ToApiStatus(archive_.status()));
    }
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(ToApiStatus(absl::CancelledError("the caller has gone")));
    if (sent_ == archive_->zip.size()) return Finish(grpc::Status::OK);
    WriteNext();
  }
  void OnDone() override {
    calls_.Leave();
    delete this;
  }

 private:
  void WriteNext() {
    const size_t count = std::min(kTokenizerChunkBytes, archive_->zip.size() - sent_);
    chunk_.set_data(archive_->zip.data() + sent_, count);
    sent_ += count;
    if (sent_ == archive_->zip.size()) chunk_.set_sha256(archive_->sha256);
    StartWrite(&chunk_);
  }

  const absl::StatusOr<TokenizerArchive>& archive_;
  CallCounter& calls_;
  common::GetTokenizerChunk chunk_;
  size_t sent_ = 0;
};

absl::StatusOr<MappedRequest> Map(const wire::GenerateRequest& request, const ServedModel& model,
                                  int stream_interval) {
  MappingLimits limits;
  limits.max_context = model.max_context;
  // One beyond the vocabulary can start no prompt.
  const int64_t bos = model.config.bos_token_id;
  limits.bos_token_id = bos < model.config.vocab_size ? bos : -1;
  limits.stream_interval = stream_interval;
  return MapGenerateRequest(request, limits);
}

}  // namespace

SchedulerService::SchedulerService(int stream_interval, Clock& clock, const Logger& logger)
    : stream_interval_(stream_interval), clock_(clock), logger_(logger), started_(clock.Now()) {}

void SchedulerService::SetLoading(const std::string& what) {
  absl::MutexLock lock(&mutex_);
  loading_ = what;
}

void SchedulerService::Serve(ApiBackend backend) {
  backend_ = std::make_unique<const ApiBackend>(std::move(backend));
  state_.store(State::kServing, std::memory_order_release);
}

void SchedulerService::Drain() {
  State serving = State::kServing;
  // Before Serve there is nothing to drain, and no backend that kDraining would promise.
  state_.compare_exchange_strong(serving, State::kDraining);
}

absl::StatusOr<const ApiBackend*> SchedulerService::Backend() const {
  if (state_.load(std::memory_order_acquire) == State::kLoading) {
    absl::MutexLock lock(&mutex_);
    return absl::UnavailableError(
        absl::StrCat("the model is still loading", loading_.empty() ? "" : ", ", loading_));
  }
  return backend_.get();
}

template <typename Fill>
grpc::ServerUnaryReactor* SchedulerService::Answer(grpc::CallbackServerContext* context,
                                                   Fill fill) {
  const absl::StatusOr<const ApiBackend*> backend = Backend();
  if (backend.ok()) fill(**backend);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToApiStatus(backend.status()));
  return reactor;
}

void SchedulerService::LogRequest(const grpc::CallbackServerContext& context,
                                  const MappedRequest& mapped) const {
  const auto trace = context.client_metadata().find("traceparent");
  const std::string parent = trace == context.client_metadata().end()
                                 ? std::string("-")
                                 : std::string(trace->second.data(), trace->second.size());
  logger_.Debug(
      "request",
      {Kv("id", mapped.request.id), Kv("prompt_tokens", mapped.request.prompt.size()),
       Kv("n", mapped.request.sampling.n), Kv("stream", mapped.stream), Kv("traceparent", parent)});
}

grpc::ServerWriteReactor<wire::GenerateResponse>* SchedulerService::Generate(
    grpc::CallbackServerContext* context, const wire::GenerateRequest* request) {
  auto* reactor = new GenerateReactor(calls_);
  const absl::StatusOr<const ApiBackend*> backend = Backend();
  if (!backend.ok()) {
    reactor->Refuse(backend.status());
    return reactor;
  }
  last_request_unix_nanos_.store(absl::ToUnixNanos(clock_.Now()), std::memory_order_relaxed);
  absl::StatusOr<MappedRequest> mapped = Map(*request, (*backend)->model, stream_interval_);
  if (!mapped.ok()) {
    logger_.Debug("request_refused", {Kv("id", Quoted(request->request_id())),
                                      Kv("reason", mapped.status().message())});
    reactor->Refuse(mapped.status());
    return reactor;
  }
  LogRequest(*context, *mapped);
  reactor->Start(*std::move(mapped), *(*backend)->engine);
  return reactor;
}

grpc::ServerUnaryReactor* SchedulerService::Abort(grpc::CallbackServerContext* context,
                                                  const wire::AbortRequest* request,
                                                  wire::AbortResponse* response) {
  return Answer(context, [&](const ApiBackend& backend) {
    const bool found = backend.engine->Abort(request->request_id());
    response->set_success(found);
    response->set_message(found ? "aborted" : "no request with this id is in flight");
  });
}

grpc::ServerUnaryReactor* SchedulerService::HealthCheck(grpc::CallbackServerContext* context,
                                                        const wire::HealthCheckRequest*,
                                                        wire::HealthCheckResponse* response) {
  return Answer(context, [&](const ApiBackend&) {
    const bool serving = state_.load(std::memory_order_relaxed) == State::kServing;
    response->set_healthy(serving);
    response->set_message(serving ? "serving" : "draining");
  });
}

grpc::ServerUnaryReactor* SchedulerService::GetModelInfo(grpc::CallbackServerContext* context,
                                                         const wire::GetModelInfoRequest*,
                                                         wire::GetModelInfoResponse* response) {
  return Answer(context,
                [&](const ApiBackend& backend) { FillModelInfo(backend.model, response); });
}

grpc::ServerUnaryReactor* SchedulerService::GetServerInfo(grpc::CallbackServerContext* context,
                                                          const wire::GetServerInfoRequest*,
                                                          wire::GetServerInfoResponse* response) {
  return Answer(context, [&](const ApiBackend& backend) {
    const int64_t last = last_request_unix_nanos_.load(std::memory_order_relaxed);
    ServerTimes times;
    times.now = clock_.Now();
    times.started = started_;
    times.last_request = last == 0 ? absl::InfinitePast() : absl::FromUnixNanos(last);
    FillServerInfo(backend.model, backend.engine->Load(), times, response);
  });
}

grpc::ServerUnaryReactor* SchedulerService::GetLoads(grpc::CallbackServerContext* context,
                                                     const wire::GetLoadsRequest*,
                                                     wire::GetLoadsResponse* response) {
  return Answer(context, [&](const ApiBackend& backend) {
    FillLoads(backend.model, backend.engine->Load(), clock_.Now(), response);
  });
}

grpc::ServerUnaryReactor* SchedulerService::FlushCache(grpc::CallbackServerContext* context,
                                                       const common::FlushCacheRequest*,
                                                       common::FlushCacheResponse* response) {
  return Answer(context, [&](const ApiBackend& backend) {
    const bool flushed = backend.engine->FlushCache();
    response->set_success(flushed);
    response->set_message(flushed ? "prefix cache emptied" : "requests are running; try again");
  });
}

grpc::ServerWriteReactor<common::GetTokenizerChunk>* SchedulerService::GetTokenizer(
    grpc::CallbackServerContext*, const common::GetTokenizerRequest*) {
  static const absl::StatusOr<TokenizerArchive> kLoading =
      absl::UnavailableError("the model is still loading");
  const absl::StatusOr<const ApiBackend*> backend = Backend();
  return new TokenizerStream(backend.ok() ? (*backend)->tokenizer : kLoading, calls_);
}

}  // namespace atelier
