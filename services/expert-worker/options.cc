#include "services/expert-worker/options.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "libs/base/check.h"
#include "libs/base/endpoint.h"
#include "libs/base/log.h"
#include "libs/base/status_macros.h"
#include "libs/kernels/cpu_features.h"
#include "libs/kernels/quantizer.h"

namespace atelier {
namespace {

template <typename... Args>
absl::Status Invalid(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

// Puts the flag before what a parser says.
absl::Status Of(absl::string_view flag, const absl::Status& status) {
  if (status.ok()) return status;
  return Invalid(flag, ": ", status.message());
}

absl::Status CheckRange(absl::string_view flag, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return Invalid(flag, "=", value, ": must be from ", min, " to ", max);
}

absl::Status CheckListen(const WorkerOptions& options) {
  if (options.listen.empty()) return Invalid("--listen: give at least one address");
  std::set<std::string> seen;
  for (const std::string& address : options.listen) {
    const absl::StatusOr<Endpoint> endpoint = ParseEndpoint(address);
    ATELIER_RETURN_IF_ERROR(Of("--listen", endpoint.status()));
    if (endpoint->shared_memory) {
      return Invalid("--listen=", address,
                     ": shared memory has a flag of its own, --shm-listen=", endpoint->unix_path);
    }
    if (!endpoint->IsLoopback() && !options.security.has_tls() && !options.insecure) {
      return Invalid("--listen=", address,
                     ": other machines reach this address in plaintext; give --tls-cert and "
                     "--tls-key, or --insecure if the network is trusted, else use 127.0.0.1 or "
                     "unix:/path");
    }
    const bool any_port = !endpoint->is_unix() && endpoint->port == 0;
    if (!any_port && !seen.insert(endpoint->ToString()).second) {
      return Invalid("--listen: ", address, " appears twice");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSecurity(const ServerSecurity& security) {
  if (security.certificate.empty() != security.private_key.empty()) {
    return Invalid("--tls-cert and --tls-key go together; --tls-",
                   security.certificate.empty() ? "cert" : "key", " is missing");
  }
  if (security.has_tls()) return absl::OkStatus();
  if (!security.client_ca.empty()) {
    return Invalid("--tls-client-ca=", security.client_ca,
                   ": only TLS has certificates of clients; give --tls-cert and --tls-key too");
  }
  if (security.token_file.empty()) return absl::OkStatus();
  return Invalid("--token-file=", security.token_file,
                 ": without TLS everybody on the way could read the tokens; give --tls-cert and "
                 "--tls-key too");
}

absl::Status CheckShm(const WorkerOptions& options) {
  for (const std::string& uid : options.shm_allow_uids) {
    uint32_t number = 0;
    if (!absl::SimpleAtoi(uid, &number)) {
      return Invalid("--shm-allow-uids=", uid, ": must be the number of a user, see id -u");
    }
  }
  if (options.shm_listen.empty()) {
    if (options.shm_allow_uids.empty()) return absl::OkStatus();
    return Invalid("--shm-allow-uids: without --shm-listen there is nothing to allow");
  }
  ATELIER_RETURN_IF_ERROR(
      Of("--shm-listen", ParseEndpoint(absl::StrCat("shm:", options.shm_listen)).status()));
  ATELIER_RETURN_IF_ERROR(CheckRange("--shm-max-clients", options.shm_max_clients, 1, 1024));
  ATELIER_RETURN_IF_ERROR(CheckRange("--shm-bytes-per-client", options.shm_bytes_per_client,
                                     int64_t{1} << 20, int64_t{1} << 36));
  if (options.shm_spin < absl::ZeroDuration() || options.shm_spin > absl::Milliseconds(10)) {
    return Invalid("--shm-spin=", absl::FormatDuration(options.shm_spin),
                   ": must be from 0 to 10ms");
  }
  return absl::OkStatus();
}

absl::Status CheckPlacement(const WorkerOptions& options) {
  if (options.placement.empty()) {
    if (options.worker.empty()) return absl::OkStatus();
    return Invalid("--worker=", options.worker,
                   ": names a worker of --placement, which is missing");
  }
  if (options.worker.empty()) {
    return Invalid("--placement=", options.placement,
                   ": --worker must say which of its workers this is");
  }
  if (options.experts.empty() && options.shard_slice == WorkerOptions().shard_slice) {
    return absl::OkStatus();
  }
  return Invalid("--placement=", options.placement,
                 ": says which experts are held, so neither --experts nor --shard-slice may");
}

absl::Status CheckShard(const WorkerOptions& options) {
  ATELIER_RETURN_IF_ERROR(CheckPlacement(options));
  ATELIER_RETURN_IF_ERROR(Of("--shard-slice", ParseSlice(options.shard_slice).status()));
  if (!options.experts.empty()) {
    ATELIER_RETURN_IF_ERROR(Of("--experts", ParseExpertRange(options.experts).status()));
  }
  const std::vector<std::string> choices = MethodChoices();
  if (std::find(choices.begin(), choices.end(), options.method) == choices.end()) {
    return Invalid("--method=", options.method, ": must be one of ", absl::StrJoin(choices, ", "));
  }
  if (options.populate && options.store_dir.empty()) {
    return Invalid("--populate: needs --store-dir; without, weights are in memory anyway");
  }
  return absl::OkStatus();
}

absl::Status CheckLimits(const WorkerOptions& options) {
  constexpr int64_t kMaxCount = int64_t{1} << 20;
  constexpr int64_t kMaxTokens = int64_t{1} << 24;
  ATELIER_RETURN_IF_ERROR(CheckRange("--numa-node", options.numa_node, -1, 1023));
  ATELIER_RETURN_IF_ERROR(CheckRange("--threads", options.threads, 0, 4096));
  ATELIER_RETURN_IF_ERROR(CheckRange("--max-queued-calls", options.max_queued_calls, 1, kMaxCount));
  ATELIER_RETURN_IF_ERROR(
      CheckRange("--max-queued-tokens", options.max_queued_tokens, 1, kMaxTokens));
  ATELIER_RETURN_IF_ERROR(
      CheckRange("--max-tokens-per-call", options.max_tokens_per_call, 1, kMaxCount));
  ATELIER_RETURN_IF_ERROR(CheckRange("--max-message-bytes", options.max_message_bytes,
                                     kMinMessageBytes, kMaxMessageBytes));
  if (options.default_timeout < absl::Milliseconds(1)) {
    return Invalid("--default-timeout=", absl::FormatDuration(options.default_timeout),
                   ": must be at least 1ms");
  }
  if (options.drain_timeout < absl::ZeroDuration()) {
    return Invalid("--drain-timeout=", absl::FormatDuration(options.drain_timeout),
                   ": must not be negative");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WorkerOptions::Validate() const {
  ATELIER_RETURN_IF_ERROR(Of("--cpu-isa", ParseCpuIsa(cpu_isa).status()));
  ATELIER_RETURN_IF_ERROR(Of("--log-level", ParseSeverity(log_level).status()));
  if (capabilities) return absl::OkStatus();  // needs no model and opens no port
  if (model_path.empty()) {
    return Invalid(
        "--model-path is required: the folder of the checkpoint (config.json, *.safetensors)");
  }
  ATELIER_RETURN_IF_ERROR(CheckShard(*this));
  ATELIER_RETURN_IF_ERROR(CheckSecurity(security));
  ATELIER_RETURN_IF_ERROR(CheckListen(*this));
  ATELIER_RETURN_IF_ERROR(CheckShm(*this));
  const absl::StatusOr<Endpoint> metrics = ParseEndpoint(metrics_address);
  ATELIER_RETURN_IF_ERROR(Of("--metrics-address", metrics.status()));
  if (metrics->is_unix()) {
    return Invalid("--metrics-address=", metrics_address,
                   ": Prometheus and probes need host:port, not a Unix socket");
  }
  return CheckLimits(*this);
}

std::vector<std::string> MethodChoices() {
  std::vector<std::string> choices = {"auto"};
  for (const Method method : AllMethods()) {
    if (TakesFloats(method)) choices.push_back(absl::AsciiStrToLower(MethodName(method)));
  }
  return choices;
}

std::optional<Method> WorkerOptions::RequestedMethod() const {
  return ParseMethod(absl::AsciiStrToUpper(method));
}

ShardSpec WorkerOptions::Shard(int num_experts) const {
  return ShardNamed(shard_slice, experts, num_experts);
}

std::vector<uint32_t> WorkerOptions::ShmAllowUids() const {
  std::vector<uint32_t> uids(shm_allow_uids.size());
  for (size_t i = 0; i < uids.size(); ++i) {
    ATELIER_CHECK(absl::SimpleAtoi(shm_allow_uids[i], &uids[i]));
  }
  return uids;
}

std::string WorkerOptions::ToString() const {
  return absl::StrCat(
      "model_path=", model_path, " shard_slice=", shard_slice,
      " experts=", experts.empty() ? "all" : experts, " placement=", placement, " worker=", worker,
      " skip_experts=", skip_experts, " method=", method, " store_dir=", store_dir,
      " populate=", populate, " listen=", absl::StrJoin(listen, ","), " shm_listen=", shm_listen,
      " shm_allow_uids=", absl::StrJoin(shm_allow_uids, ","), " shm_max_clients=", shm_max_clients,
      " shm_bytes_per_client=", shm_bytes_per_client, " shm_spin=", absl::FormatDuration(shm_spin),
      " insecure=", insecure, " tls_cert=", security.certificate, " tls_key=", security.private_key,
      " tls_client_ca=", security.client_ca, " token_file=", security.token_file,
      " metrics_address=", metrics_address, " ready_file=", ready_file, " numa_node=", numa_node,
      " threads=", threads, " pin_threads=", pin_threads, " cpu_isa=", cpu_isa,
      " max_queued_calls=", max_queued_calls, " max_queued_tokens=", max_queued_tokens,
      " max_tokens_per_call=", max_tokens_per_call, " max_message_bytes=", max_message_bytes,
      " default_timeout=", absl::FormatDuration(default_timeout),
      " drain_timeout=", absl::FormatDuration(drain_timeout), " log_level=", log_level);
}

}  // namespace atelier
