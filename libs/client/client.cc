#include "libs/client/client.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "libs/base/status_macros.h"
#include "libs/client/pending_call.h"
#include "libs/client/routing_table.h"
#include "libs/client/worker_set.h"
#include "libs/metrics/metrics.h"
#include "libs/transport/worker_connection.h"

namespace atelier {
namespace {

// Whether row `token` has an expert in a shard.
bool RowNeeds(const Routing& routing, int token, const RoutedShard& shard) {
  const int32_t* ids =
      routing.expert_ids + static_cast<size_t>(token) * static_cast<size_t>(routing.top_k);
  return std::any_of(ids, ids + routing.top_k,
                     [&](int32_t id) { return id >= shard.expert_begin && id < shard.expert_end; });
}

// The workers that must answer, each with the rows that have an expert there.
std::vector<WorkerPart> SplitRows(const std::vector<RoutedShard>& shards, const Routing& routing) {
  std::map<size_t, std::vector<const RoutedShard*>> by_worker;
  for (const RoutedShard& shard : shards) by_worker[shard.worker].push_back(&shard);
  std::vector<WorkerPart> parts;
  for (const auto& [worker, held] : by_worker) {
    WorkerPart part;
    part.worker = worker;
    for (int token = 0; token < routing.num_tokens; ++token) {
      if (std::any_of(held.begin(), held.end(),
                      [&](const RoutedShard* shard) { return RowNeeds(routing, token, *shard); })) {
        part.rows.push_back(token);
      }
    }
    if (!part.rows.empty()) parts.push_back(std::move(part));
  }
  return parts;
}

class Client final : public ExpertClient {
 public:
  Client(const ClientOptions& options, Clock& clock, const Logger& logger, ClientMetrics* metrics)
      : options_(options),
        clock_(clock),
        metrics_(metrics),
        workers_(
            options.workers,
            {options.model_digest, options.hidden_size, options.num_experts, options.moe_layers},
            logger, metrics) {
    for (size_t i = 0; i < options.workers.size(); ++i) {
      if (metrics != nullptr) call_seconds_.push_back(&metrics->CallSeconds(options.workers[i]));
    }
    for (size_t i = 0; i < options.workers.size(); ++i) {
      connections_.push_back(WorkerConnection::Create(
          options.workers[i], clock, logger,
          [this, i](const absl::StatusOr<WorkerDescription>& news) { workers_.Update(i, news); }));
    }
  }

  absl::Status AwaitTable() { return workers_.AwaitTable(absl::Now() + options_.connect_timeout); }

  absl::StatusOr<std::unique_ptr<PendingForward>> Forward(const ForwardCall& call) override {
    std::shared_ptr<const RoutingTable> table = workers_.table();
    ATELIER_RETURN_IF_ERROR(Check(*table, call));
    std::vector<WorkerPart> parts = SplitRows(*table->Layer(call.layer), call.routing);
    for (const WorkerPart& part : parts) ATELIER_RETURN_IF_ERROR(workers_.Usable(part.worker));
    const std::string& digest = table->model_digest();
    auto pending =
        std::make_unique<PendingCall>(table, call.layer, call.batch.num_tokens, std::move(parts));
    Send(call, digest, *pending);
    return pending;
  }

  std::vector<WorkerInfo> Workers() const override { return workers_.Infos(); }
  absl::Status Ready() const override { return workers_.Ready(); }

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

  // Parts with the same rows share one encoding.
  void Send(const ForwardCall& call, const std::string& digest, PendingCall& pending) {
    const absl::Duration timeout =
        call.timeout > absl::ZeroDuration() ? call.timeout : options_.call_timeout;
    const absl::Time start = clock_.Now();
    const std::vector<WorkerPart>& parts = pending.parts();
    std::shared_ptr<const EncodedForward> encoded;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (i == 0 || parts[i].rows != parts[i - 1].rows) encoded = Encode(call, parts[i], digest);
      const size_t worker = parts[i].worker;
      pending.Keep(connections_[worker]->Forward(
          encoded, start + timeout, [this, &pending, i, start, worker](ForwardReply reply) {
            Observe(worker, start, reply.status);
            pending.Finish(i, std::move(reply));
          }));
    }
  }

  std::shared_ptr<const EncodedForward> Encode(const ForwardCall& call, const WorkerPart& part,
                                               const std::string& digest) {
    ForwardEncoding encoding;
    encoding.layer = call.layer;
    encoding.batch = call.batch;
    encoding.routing = call.routing;
    encoding.priority = call.priority;
    encoding.model_digest = digest;
    if (part.rows.size() < static_cast<size_t>(call.batch.num_tokens)) encoding.rows = &part.rows;
    return EncodeForward(encoding);
  }

  void Observe(size_t worker, absl::Time start, const absl::Status& status) {
    if (metrics_ == nullptr) return;
    if (status.ok()) {
      call_seconds_[worker]->Observe(absl::ToDoubleSeconds(clock_.Now() - start));
    } else {
      metrics_->CallErrors(options_.workers[worker], absl::StatusCodeToString(status.code()))
          .Increment();
    }
  }

  const ClientOptions options_;
  Clock& clock_;
  ClientMetrics* const metrics_;
  std::vector<prometheus::Histogram*> call_seconds_;  // per worker, if there are metrics
  WorkerSet workers_;
  std::vector<std::unique_ptr<WorkerConnection>>
      connections_;  // destroyed first: they call workers_
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
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ExpertClient>> ExpertClient::Connect(const ClientOptions& options,
                                                                    Clock& clock,
                                                                    const Logger& logger,
                                                                    ClientMetrics* metrics) {
  ATELIER_RETURN_IF_ERROR(options.Validate());
  auto client = std::make_unique<Client>(options, clock, logger, metrics);
  ATELIER_RETURN_IF_ERROR(client->AwaitTable());
  return client;
}

}  // namespace atelier
