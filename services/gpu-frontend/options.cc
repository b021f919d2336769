#include "services/gpu-frontend/options.h"

#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "libs/base/endpoint.h"
#include "libs/base/status_macros.h"

namespace atelier {
namespace {

template <typename... Args>
absl::Status Invalid(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

absl::Status CheckEndpoint(absl::string_view flag, const std::string& text) {
  const absl::StatusOr<Endpoint> endpoint = ParseEndpoint(text);
  if (endpoint.ok()) return absl::OkStatus();
  return Invalid(flag, ": ", endpoint.status().message());
}

absl::Status CheckWorkers(const FrontendOptions& options) {
  const std::vector<std::string>& workers = options.workers;
  if (workers.empty()) {
    return Invalid(
        "--workers is required: the expert workers' addresses, e.g. "
        "--workers=127.0.0.1:7070,unix:/run/atelier/worker-1.sock");
  }
  std::set<std::string> seen;
  for (const std::string& worker : workers) {
    ATELIER_RETURN_IF_ERROR(CheckEndpoint("--workers", worker));
    const Endpoint endpoint = *ParseEndpoint(worker);
    if (!endpoint.is_unix() && endpoint.port == 0) {
      return Invalid("--workers: ", worker, ": port 0 names no worker");
    }
    if (!endpoint.IsLoopback() && !options.worker_security.has_tls() && !options.insecure) {
      return Invalid("--workers: ", worker,
                     ": is on another machine, in plaintext; give --worker-tls-ca (and the worker "
                     "--tls-cert), or --insecure if the network is trusted");
    }
    if (!seen.insert(worker).second) return Invalid("--workers: ", worker, " appears twice");
  }
  return absl::OkStatus();
}

absl::Status CheckWorkerSecurity(const ClientSecurity& security) {
  if (security.certificate.empty() != security.private_key.empty()) {
    return Invalid("--worker-tls-cert and --worker-tls-key go together; --worker-tls-",
                   security.certificate.empty() ? "cert" : "key", " is missing");
  }
  if (security.has_tls()) return absl::OkStatus();
  for (const auto& [flag, value] : {std::pair{"--worker-tls-cert", &security.certificate},
                                    std::pair{"--worker-tls-server-name", &security.server_name},
                                    std::pair{"--worker-token-file", &security.token_file}}) {
    if (value->empty()) continue;
    return Invalid(flag, "=", *value, ": means nothing without TLS; give --worker-tls-ca too");
  }
  return absl::OkStatus();
}

// "" or what is wrong with a host.
absl::string_view HostProblem(const std::string& host) {
  if (host.empty()) return "give an address, e.g. --host=127.0.0.1";
  if (absl::StartsWith(host, "unix:")) {
    return "the gateway reaches engines over TCP only, not over a Unix socket";
  }
  if (absl::StartsWith(host, "[")) {
    return "give an IPv6 address without brackets, and the port as --port";
  }
  Endpoint listen;
  listen.host = host;
  if (ParseEndpoint(listen.ToString()).ok()) return "";
  return absl::StrContains(host, ':') ? "is no IPv6 address; the port goes into --port"
                                      : "is no name or IP address";
}

absl::Status CheckMetrics(const std::string& address) {
  ATELIER_RETURN_IF_ERROR(CheckEndpoint("--metrics-address", address));
  if (!ParseEndpoint(address)->is_unix()) return absl::OkStatus();
  return Invalid("--metrics-address=", address,
                 ": Prometheus and probes need host:port, not a Unix socket");
}

absl::Status CheckListen(const FrontendOptions& options) {
  Endpoint listen;
  listen.host = options.host;
  const absl::string_view problem = HostProblem(options.host);
  if (!problem.empty()) {
    return Invalid("--host=", options.host.empty() ? "\"\"" : options.host, ": ", problem);
  }
  if (!listen.IsLoopback() && !options.insecure) {
    return Invalid("--host=", options.host,
                   ": other machines reach this address, and the gateway speaks neither TLS nor "
                   "tokens to an engine; add --insecure if the network is trusted, else listen on "
                   "127.0.0.1 beside the gateway");
  }
  return CheckMetrics(options.metrics_address);
}

absl::Status CheckSizes(const FrontendOptions& options) {
  if (options.kv_cache_bytes <= 0) return Invalid("--kv-cache-bytes=0: must be positive");
  if (options.worker_timeout <= absl::ZeroDuration()) {
    return Invalid("--worker-timeout=0: must be positive");
  }
  if (options.connect_timeout <= absl::ZeroDuration()) {
    return Invalid("--connect-timeout=0: must be positive; no worker answers in no time");
  }
  if (options.max_total_tokens > 0 && options.max_total_tokens < options.page_size) {
    return Invalid("--max-total-tokens=", options.max_total_tokens,
                   ": must hold at least one page of --page-size=", options.page_size, " tokens");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Absolute(const std::string& path) {
  std::error_code error;
  std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (error) return Invalid("path ", path, ": ", error.message());
  absolute = absolute.lexically_normal();
  if (!absolute.has_filename()) absolute = absolute.parent_path();  // a trailing slash
  return absolute.string();
}

}  // namespace

absl::Status FrontendOptions::Validate() const {
  if (model_path.empty()) {
    return Invalid(
        "--model-path is required: the folder of the checkpoint (config.json, *.safetensors)");
  }
  if (device != "cpu") {
    return absl::UnimplementedError(absl::StrCat(
        "--device=", device, ": this build has no such backend yet; use --device=cpu"));
  }
  ATELIER_RETURN_IF_ERROR(CheckWorkerSecurity(worker_security));
  ATELIER_RETURN_IF_ERROR(CheckWorkers(*this));
  ATELIER_RETURN_IF_ERROR(CheckListen(*this));
  return CheckSizes(*this);
}

absl::Status FrontendOptions::Resolve() {
  ATELIER_RETURN_IF_ERROR(Validate());
  ATELIER_ASSIGN_OR_RETURN(model_path, Absolute(model_path));
  if (tokenizer_path.empty()) tokenizer_path = model_path;
  ATELIER_ASSIGN_OR_RETURN(tokenizer_path, Absolute(tokenizer_path));
  if (served_model_name.empty()) {
    const std::filesystem::path path(model_path);
    served_model_name = (path.extension() == ".gguf" ? path.stem() : path.filename()).string();
  }
  return absl::OkStatus();
}

std::string FrontendOptions::ListenAddress() const {
  Endpoint listen;
  listen.host = host;
  listen.port = port;
  return listen.ToString();
}

}  // namespace atelier
