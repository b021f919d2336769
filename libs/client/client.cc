#include "libs/client/client.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "libs/base/status_macros.h"
#include "libs/client/pending_call.h"
#include "libs/client/routing_table.h"
#include "libs/client/row_split.h"
#include "libs/client/worker_pool.h"

namespace atelier {
namespace {

class Client final : public ExpertClient {
 public:
  Client(const ClientOptions& options, Clock& clock, const Logger& logger, ClientMetrics* metrics)
      : pool_(options, clock, logger, metrics) {}

  absl::Status AwaitTable() {
    return pool_.workers().AwaitTable(absl::Now() + pool_.options().connect_timeout);
  }

  absl::StatusOr<std::unique_ptr<PendingForward>> Forward(const ForwardCall& call) override {
    std::shared_ptr<const Routes> routes = pool_.workers().routes();
    ATELIER_RETURN_IF_ERROR(Check(*routes->table, call));
    const RoutedLayer& layer = *routes->table->Layer(call.layer);
    std::vector<CallPart> split = SplitRows(
        layer, call.routing, call.priority,
        [&](const ReplicaGroup& group) { return pool_.Choices(group, *routes, call.layer); });
    for (const CallPart& part : split) {
      const std::vector<size_t>& workers = part.group->workers;
      if (workers.size() == 1 && !routes->Live(workers[0])) {
        return pool_.workers().WhyUnusable(*part.group);
      }
    }
    std::vector<PartRequest> parts = Encode(call, *routes->table, std::move(split));
    for (const PartRequest& part : parts) {
      pool_.Probe(*part.group, *routes, static_cast<int>(part.rows.size()), part.encoded);
    }
    const absl::Duration timeout =
        call.timeout > absl::ZeroDuration() ? call.timeout : pool_.options().call_timeout;
    return std::make_unique<PendingCall>(pool_, std::move(routes), call.layer,
                                         call.batch.num_tokens, pool_.clock().Now() + timeout,
                                         std::move(parts));
  }

  std::vector<WorkerInfo> Workers() const override { return pool_.workers().Infos(); }
  absl::Status Ready() const override { return pool_.workers().Ready(); }

 private:
  static absl::Status Check(const RoutingTable& table, const ForwardCall& call) {
    if (table.Layer(call.layer) == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer=", call.layer, ": no worker holds experts of such a layer"));
    }
    if (call.batch.hidden_size != table.hidden_size()) {
      return absl::InvalidArgumentError(absl::StrCat("hidden_size=", call.batch.hidden_size,
                                                     ": the model has ", table.hidden_size()));
    }
    return ValidateRouting(call.batch, call.routing, table.num_experts());
  }

  // Parts of the same rows share one encoding, unless the experts have to be told apart.
  static std::vector<PartRequest> Encode(const ForwardCall& call, const RoutingTable& table,
                                         std::vector<CallPart> split) {
    std::vector<PartRequest> parts;
    for (CallPart& part : split) {
      const auto same = std::find_if(parts.begin(), parts.end(), [&](const PartRequest& other) {
        return !part.group->holds_more && !other.group->holds_more && other.rows == part.rows;
      });
      PartRequest request{part.group, AllReplicas(part), std::move(part.rows), nullptr};
      request.encoded =
          same != parts.end() ? same->encoded : EncodePart(call, table, *part.group, request.rows);
      parts.push_back(std::move(request));
    }
    return parts;
  }

  // Those that may not be asked now may be when they are needed.
  static std::vector<size_t> AllReplicas(const CallPart& part) {
    std::vector<size_t> replicas = part.replicas;
    for (const size_t worker : part.group->workers) {
      if (std::find(replicas.begin(), replicas.end(), worker) == replicas.end()) {
        replicas.push_back(worker);
      }
    }
    return replicas;
  }

  static std::shared_ptr<const EncodedForward> EncodePart(const ForwardCall& call,
                                                          const RoutingTable& table,
                                                          const ReplicaGroup& group,
                                                          const std::vector<int>& rows) {
    ForwardEncoding encoding;
    encoding.layer = call.layer;
    encoding.batch = call.batch;
    encoding.routing = call.routing;
    encoding.priority = call.priority;
    encoding.model_digest = table.model_digest();
    if (rows.size() < static_cast<size_t>(call.batch.num_tokens)) encoding.rows = &rows;
    if (!group.holds_more) return EncodeForward(encoding);
    const std::vector<int32_t> ids = MaskExperts(*table.Layer(call.layer), group, call.routing);
    encoding.routing.expert_ids = ids.data();
    return EncodeForward(encoding);
  }

  mutable WorkerPool pool_;
};

}  // namespace

absl::Status ClientOptions::Validate() const {
  if (workers.empty()) return absl::InvalidArgumentError("workers: at least one address is needed");
  std::set<std::string> seen;
  for (const std::string& address : workers) {
    if (address.empty()) return absl::InvalidArgumentError("workers: an address is empty");
    if (!seen.insert(address).second) {
      return absl::InvalidArgumentError(absl::StrCat("workers: ", address, " is named twice"));
    }
  }
  if (call_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("call_timeout=", absl::FormatDuration(call_timeout), ": must be positive"));
  }
  if (connect_timeout < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "connect_timeout=", absl::FormatDuration(connect_timeout), ": must not be negative"));
  }
  return failover.Validate();
}

absl::StatusOr<std::unique_ptr<ExpertClient>> ExpertClient::Connect(const ClientOptions& options,
                                                                    Clock& clock,
                                                                    const Logger& logger,
                                                                    ClientMetrics* metrics) {
  ATELIER_RETURN_IF_ERROR(options.Validate());
  ATELIER_RETURN_IF_ERROR(CheckFiles(options.security));
  auto client = std::make_unique<Client>(options, clock, logger, metrics);
  ATELIER_RETURN_IF_ERROR(client->AwaitTable());
  return client;
}

}  // namespace atelier
