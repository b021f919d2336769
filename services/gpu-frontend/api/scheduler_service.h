#pragma once

#include <atomic>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "libs/base/clock.h"
#include "libs/base/log.h"
#include "proto/compat/sglang_scheduler.grpc.pb.h"
#include "services/gpu-frontend/api/api_server.h"
#include "services/gpu-frontend/api/call_counter.h"
#include "services/gpu-frontend/api/request_mapping.h"
#include "services/gpu-frontend/api/unsupported_methods.h"

namespace atelier {

// The RPCs of SglangScheduler over an Engine. Until Serve every one of them answers UNAVAILABLE.
// Thread-safe; no RPC but Generate and Abort waits for anything of the engine's.
class SchedulerService final : public UnsupportedMethods {
 public:
  SchedulerService(int stream_interval, Clock& clock, const Logger& logger);

  // See ApiServer. Serve is called once.
  void SetLoading(const std::string& what);
  void Serve(ApiBackend backend);
  void Drain();
  // Blocks until no Generate call refers to the engine any more; the server must be shut down.
  void AwaitCalls() { calls_.AwaitNone(); }

  grpc::ServerWriteReactor<sglang::grpc::scheduler::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context,
      const sglang::grpc::scheduler::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const sglang::grpc::scheduler::AbortRequest* request,
                                  sglang::grpc::scheduler::AbortResponse* response) override;
  grpc::ServerUnaryReactor* HealthCheck(
      grpc::CallbackServerContext* context,
      const sglang::grpc::scheduler::HealthCheckRequest* request,
      sglang::grpc::scheduler::HealthCheckResponse* response) override;
  grpc::ServerUnaryReactor* GetModelInfo(
      grpc::CallbackServerContext* context,
      const sglang::grpc::scheduler::GetModelInfoRequest* request,
      sglang::grpc::scheduler::GetModelInfoResponse* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(
      grpc::CallbackServerContext* context,
      const sglang::grpc::scheduler::GetServerInfoRequest* request,
      sglang::grpc::scheduler::GetServerInfoResponse* response) override;
  grpc::ServerUnaryReactor* GetLoads(grpc::CallbackServerContext* context,
                                     const sglang::grpc::scheduler::GetLoadsRequest* request,
                                     sglang::grpc::scheduler::GetLoadsResponse* response) override;
  grpc::ServerUnaryReactor* FlushCache(grpc::CallbackServerContext* context,
                                       const smg::grpc::common::FlushCacheRequest* request,
                                       smg::grpc::common::FlushCacheResponse* response) override;
  grpc::ServerWriteReactor<smg::grpc::common::GetTokenizerChunk>* GetTokenizer(
      grpc::CallbackServerContext* context,
      const smg::grpc::common::GetTokenizerRequest* request) override;

 private:
  enum class State { kLoading, kServing, kDraining };

  // The backend once there is one; else UNAVAILABLE.
  absl::StatusOr<const ApiBackend*> Backend() const;
  // Runs `fill(backend)` and answers with its status.
  template <typename Fill>
  grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, Fill fill);
  void LogRequest(const grpc::CallbackServerContext& context, const MappedRequest& mapped) const;

  const int stream_interval_;
  Clock& clock_;
  const Logger& logger_;
  const absl::Time started_;
  CallCounter calls_;
  mutable absl::Mutex mutex_;
  std::string loading_ ABSL_GUARDED_BY(mutex_);  // what it waits for; empty = nothing
  std::unique_ptr<const ApiBackend> backend_;    // written before state_ leaves kLoading
  std::atomic<State> state_{State::kLoading};    // release in Serve pairs with acquire in Backend
  std::atomic<int64_t> last_request_unix_nanos_{0};  // 0 = none yet
};

}  // namespace atelier
