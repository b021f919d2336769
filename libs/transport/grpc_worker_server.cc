#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "libs/base/endpoint.h"
#include "libs/base/status_macros.h"
#include "libs/transport/grpc_control_service.h"
#include "libs/transport/grpc_deadline.h"
#include "libs/transport/grpc_expert_service.h"
#include "libs/transport/grpc_security.h"
#include "libs/transport/grpc_tuning.h"
#include "libs/transport/listen_address.h"
#include "libs/transport/status_codes.h"
#include "libs/transport/worker_server.h"

namespace atelier {
namespace {

constexpr const char* kHealthNames[] = {"", "atelier.v1.ExpertService", "atelier.v1.WorkerControl"};

absl::Status ValidateOptions(const WorkerServerOptions& options) {
  const auto positive = [](absl::string_view field, int64_t value) {
    if (value > 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(field, "=", value, " must be positive"));
  };
  if (options.listen.empty()) return absl::InvalidArgumentError("listen names no address");
  ATELIER_RETURN_IF_ERROR(positive("hidden_size", options.hidden_size));
  ATELIER_RETURN_IF_ERROR(positive("num_experts", options.num_experts));
  ATELIER_RETURN_IF_ERROR(positive("max_tokens_per_call", options.max_tokens_per_call));
  ATELIER_RETURN_IF_ERROR(positive("max_message_bytes", options.max_message_bytes));
  return positive("default_timeout_us", absl::ToInt64Microseconds(options.default_timeout));
}

absl::StatusOr<std::vector<Endpoint>> ParseListen(const std::vector<std::string>& listen) {
  std::vector<Endpoint> endpoints;
  for (const std::string& address : listen) {
    ATELIER_ASSIGN_OR_RETURN(Endpoint endpoint, ParseEndpoint(address));
    endpoints.push_back(std::move(endpoint));
  }
  return endpoints;
}

class GrpcWorkerServer final : public WorkerServer {
 public:
  GrpcWorkerServer(const ForwardServing& serving, const Logger& logger)
      : logger_(logger),
        expert_service_(serving),
        control_service_(serving.handler, serving.clock, serving.default_timeout) {}
  ~GrpcWorkerServer() override { Shutdown(absl::ZeroDuration()); }

  absl::Status Listen(const std::vector<Endpoint>& endpoints, const WorkerServerOptions& options);

  void SetServing(bool serving) override {
    for (const char* name : kHealthNames) {
      server_->GetHealthCheckService()->SetServingStatus(name, serving);
    }
  }
  std::vector<std::string> Addresses() const override { return addresses_; }
  void Shutdown(absl::Duration grace) override;

 private:
  const Logger& logger_;
  GrpcExpertService expert_service_;
  GrpcControlService control_service_;
  std::vector<std::shared_ptr<grpc::ServerCredentials>> credentials_;  // go after the server
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::string> addresses_;
  absl::Mutex shutdown_mutex_;
  bool is_shut_down_ ABSL_GUARDED_BY(shutdown_mutex_) = false;
};

absl::Status GrpcWorkerServer::Listen(const std::vector<Endpoint>& endpoints,
                                      const WorkerServerOptions& options) {
  // Both switch on plug-ins for servers built from here on; repeating them changes nothing.
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  TuneServer(builder, options.max_message_bytes);
  std::vector<int> ports(endpoints.size(), 0);
  for (size_t i = 0; i < endpoints.size(); ++i) {
    ATELIER_RETURN_IF_ERROR(PrepareListenAddress(endpoints[i]));
    const ServerSecurity& security = endpoints[i].is_unix() ? ServerSecurity{} : options.security;
    credentials_.push_back(ServerCredentialsOf(security, logger_));
    builder.AddListeningPort(endpoints[i].ToString(), credentials_.back(), &ports[i]);
  }
  builder.RegisterService(&expert_service_);
  builder.RegisterService(&control_service_);
  server_ = builder.BuildAndStart();
  for (size_t i = 0; i < endpoints.size(); ++i) {
    if (server_ == nullptr && ports[i] == 0) {
      return absl::UnavailableError(absl::StrCat("cannot listen on ", endpoints[i].ToString(), ": ",
                                                 WhyNotBound(endpoints[i])));
    }
    Endpoint bound = endpoints[i];
    if (!bound.is_unix()) bound.port = ports[i];
    addresses_.push_back(bound.ToString());
  }
  if (server_ == nullptr) return absl::InternalError("gRPC could not start the server");
  SetServing(false);
  logger_.Info("worker_listening", {Kv("addresses", absl::StrJoin(addresses_, ","))});
  return absl::OkStatus();
}

void GrpcWorkerServer::Shutdown(absl::Duration grace) {
  absl::MutexLock lock(&shutdown_mutex_);
  if (is_shut_down_ || server_ == nullptr) return;
  is_shut_down_ = true;
  SetServing(false);
  expert_service_.BeginShutdown();
  server_->Shutdown(ToGrpcDeadline(grace));
  server_->Wait();
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerServer>> WorkerServer::Start(
    const WorkerServerOptions& options, WorkerHandler& handler, Clock& clock,
    const Logger& logger) {
  ATELIER_RETURN_IF_ERROR(ValidateOptions(options));
  ATELIER_RETURN_IF_ERROR(CheckFiles(options.security));
  ATELIER_ASSIGN_OR_RETURN(const std::vector<Endpoint> endpoints, ParseListen(options.listen));
  const ForwardServing serving{handler, clock,
                               ForwardShape{options.hidden_size, options.num_experts,
                                            options.max_tokens_per_call, options.quantized_rows},
                               options.default_timeout, options.max_message_bytes};
  auto server = std::make_unique<GrpcWorkerServer>(serving, logger);
  ATELIER_RETURN_IF_ERROR(server->Listen(endpoints, options));
  return server;
}

}  // namespace atelier
