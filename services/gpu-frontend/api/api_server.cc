#include "services/gpu-frontend/api/api_server.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "services/gpu-frontend/api/scheduler_service.h"

namespace atelier {
namespace {

// Prompts arrive as ids; 256 MiB is far beyond any context and leaves room for images one day.
constexpr int kMaxReceiveBytes = 256 << 20;
// The gateway pings every 30 s, also while a long prefill sends no data. gRPC's default tolerates
// that for two minutes and then cuts the connection, which would restart the prefill elsewhere.
constexpr int kMinPingIntervalMs = 5000;
// How a gateway whose host has vanished is noticed.
constexpr int kKeepaliveTimeMs = 30000;
constexpr int kKeepaliveTimeoutMs = 10000;

constexpr char kServiceName[] = "sglang.grpc.scheduler.SglangScheduler";

class GrpcApiServer final : public ApiServer {
 public:
  GrpcApiServer(int stream_interval, Clock& clock, const Logger& logger)
      : service_(stream_interval, clock, logger) {}
  ~GrpcApiServer() override { Shutdown(absl::ZeroDuration()); }

  absl::Status Listen(const std::string& address) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port_);
    builder.SetMaxReceiveMessageSize(kMaxReceiveBytes);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               kMinPingIntervalMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
    // Else two servers share a port in silence, each getting some of the connections.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port_ == 0) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen on ", address,
                       ": the address is taken or not of this machine; choose another port"));
    }
    SetHealth(false);
    return absl::OkStatus();
  }

  int port() const override { return port_; }

  void SetLoading(const std::string& what) override { service_.SetLoading(what); }

  void Serve(ApiBackend backend) override {
    service_.Serve(std::move(backend));
    SetHealth(true);
  }

  void Drain() override {
    service_.Drain();
    SetHealth(false);
  }

  void Shutdown(absl::Duration grace) override {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now() + absl::ToChronoNanoseconds(grace));
    server_->Wait();
    service_.AwaitCalls();
    server_.reset();
  }

 private:
  void SetHealth(bool serving) {
    grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
    health->SetServingStatus("", serving);
    health->SetServingStatus(kServiceName, serving);
  }

  SchedulerService service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ApiServer>> ApiServer::Start(const ApiServerOptions& options,
                                                            Clock& clock, const Logger& logger) {
  auto server = std::make_unique<GrpcApiServer>(options.stream_interval, clock, logger);
  if (absl::Status status = server->Listen(options.listen); !status.ok()) return status;
  return server;
}

}  // namespace atelier
