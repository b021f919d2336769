#include "libs/client/worker_set.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "libs/base/status_macros.h"
#include "libs/metrics/metrics.h"

namespace atelier {
namespace {

std::string ShardsText(const WorkerDescription& description) {
  return absl::StrJoin(description.shards, "; ", [](std::string* out, const ShardSpec& shard) {
    absl::StrAppend(out, ShardName(shard));
  });
}

absl::Status CheckSameContents(const WorkerDescription& before, const WorkerDescription& now) {
  const auto changed = [](absl::string_view what, const auto& was, const auto& is) {
    return absl::FailedPreconditionError(absl::StrCat(what, " was ", was, ", is ", is));
  };
  if (now.model_digest != before.model_digest) {
    return changed("model digest", before.model_digest, now.model_digest);
  }
  if (now.hidden_size != before.hidden_size) {
    return changed("hidden size", before.hidden_size, now.hidden_size);
  }
  if (now.num_experts != before.num_experts) {
    return changed("number of experts", before.num_experts, now.num_experts);
  }
  if (now.method == before.method) return absl::OkStatus();
  // Texts begun, and keys and values kept for later ones, are of the old numbers.
  return changed("method", before.method, now.method);
}

absl::Status CameBackChanged(absl::string_view address, absl::string_view how) {
  return absl::FailedPreconditionError(
      absl::StrCat("worker ", address, " came back changed: ", how,
                   "; restart it as it was, or restart this side too"));
}

}  // namespace

WorkerSet::WorkerSet(std::vector<std::string> addresses, RoutingNeeds needs, const Logger& logger,
                     ClientMetrics* metrics)
    : needs_(std::move(needs)), logger_(logger), metrics_(metrics) {
  for (std::string& address : addresses) {
    Entry entry;
    entry.address = std::move(address);
    if (metrics_ != nullptr) metrics_->Connected(entry.address).Set(0);
    entries_.push_back(std::move(entry));
  }
}

void WorkerSet::Update(size_t worker, const absl::StatusOr<WorkerDescription>& news) {
  absl::MutexLock lock(&mutex_);
  Entry& entry = entries_[worker];
  entry.heard = true;
  if (!news.ok()) {
    SetStatus(entry, news.status());
  } else if (news->state != WorkerState::kServing) {
    SetStatus(entry, absl::UnavailableError(absl::StrCat("worker ", entry.address, " is ",
                                                         WorkerStateName(news->state))));
  } else {
    Accept(worker, *news);
  }
  if (table_ == nullptr && AllHeard()) BuildFirst();
  Publish();
}

// A worker that comes back, or says anew what it holds, is used as far as it fits what the others
// hold; one of anything but the same model and method is refused: calls must not reach it.
void WorkerSet::Accept(size_t worker, const WorkerDescription& description) {
  Entry& entry = entries_[worker];
  const absl::Status fits = CheckFits(entry, description);
  if (!fits.ok()) {
    logger_.Error("worker_refused", {Kv("worker", entry.address), Kv("reason", fits.message())});
    return SetStatus(entry, fits);
  }
  entry.description = description;
  ++entry.connections;
  SetStatus(entry, absl::OkStatus());
}

absl::Status WorkerSet::CheckFits(Entry& entry, const WorkerDescription& description) {
  if (table_ == nullptr) return absl::OkStatus();
  const std::optional<WorkerDescription> before = entry.description;
  if (before.has_value()) {
    const absl::Status same = CheckSameContents(*before, description);
    if (!same.ok()) return CameBackChanged(entry.address, same.message());
    if (description.shards == before->shards) return absl::OkStatus();
  }
  entry.description = description;
  absl::StatusOr<RoutingTable> table = Build();
  if (table.ok() && !table_->HasSamePartsIn(*table)) {
    // Texts begun are of sums that were added in another order.
    table = absl::FailedPreconditionError("the experts would be divided otherwise than before");
  }
  if (table.ok()) {
    Use(*std::move(table));
    return absl::OkStatus();
  }
  entry.description = before;
  if (before.has_value()) {
    return CameBackChanged(
        entry.address, absl::StrCat("shards were ", ShardsText(*before), ", are ",
                                    ShardsText(description), ", and ", table.status().message()));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "worker ", entry.address, " does not fit the others: ", table.status().message()));
}

absl::StatusOr<RoutingTable> WorkerSet::Build() const {
  return RoutingTable::Build(Described(), needs_);
}

// Workers that are still to come may mend what is missing, but nothing that they hold changes what
// the others said.
void WorkerSet::BuildFirst() {
  absl::StatusOr<RoutingTable> table = Build();
  table_error_ = AllDescribed() ? table.status() : absl::OkStatus();
  if (table.ok()) Use(*std::move(table));
}

void WorkerSet::Use(RoutingTable table) {
  table_ = std::make_shared<const RoutingTable>(std::move(table));
  WarnOfMixedMethods(Described());
}

void WorkerSet::Publish() {
  if (table_ == nullptr) return;
  Routes routes;
  routes.table = table_;
  for (const Entry& entry : entries_) {
    routes.connections.push_back(entry.status.ok() ? entry.connections : 0);
  }
  routes_ = std::make_shared<const Routes>(std::move(routes));
  CountReplicas();
}

void WorkerSet::CountReplicas() {
  if (metrics_ == nullptr) return;
  std::map<std::string, int> live;
  for (const Entry& entry : entries_) {
    if (!entry.description.has_value()) continue;
    for (const ShardSpec& shard : entry.description->shards) {
      live[ShardName(shard)] += entry.status.ok() ? 1 : 0;
    }
  }
  for (const std::string& shard : counted_) live.try_emplace(shard, 0);
  for (const auto& [shard, count] : live) {
    metrics_->LiveReplicas(shard).Set(count);
    counted_.insert(shard);
  }
}

std::vector<DescribedWorker> WorkerSet::Described() const {
  std::vector<DescribedWorker> workers;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (!entries_[i].description.has_value()) continue;
    workers.push_back({i, entries_[i].address, *entries_[i].description});
  }
  return workers;
}

void WorkerSet::WarnOfMixedMethods(const std::vector<DescribedWorker>& workers) const {
  const auto same = [&](const DescribedWorker& worker) {
    return worker.description.method == workers[0].description.method;
  };
  if (std::all_of(workers.begin(), workers.end(), same)) return;
  logger_.Warning("mixed_methods",
                  {Kv("workers", absl::StrJoin(workers, ", ",
                                               [](std::string* out, const DescribedWorker& worker) {
                                                 absl::StrAppend(out, worker.address, " ",
                                                                 worker.description.method);
                                               })),
                   Kv("effect", "parts of the experts are less precise than others")});
}

void WorkerSet::SetStatus(Entry& entry, absl::Status status) {
  if (status.ok() && !entry.status.ok()) {
    logger_.Info("worker_connected",
                 {Kv("worker", entry.address), Kv("shards", ShardsText(*entry.description)),
                  Kv("method", entry.description->method), Kv("isa", entry.description->isa)});
    if (entry.connections > 1 && metrics_ != nullptr) {
      metrics_->Reconnects(entry.address).Increment();
    }
  } else if (!status.ok() && entry.status.ok()) {
    logger_.Warning("worker_lost", {Kv("worker", entry.address), Kv("reason", status.message())});
  }
  if (metrics_ != nullptr) metrics_->Connected(entry.address).Set(status.ok() ? 1 : 0);
  entry.status = std::move(status);
}

bool WorkerSet::AllDescribed() const {
  return std::all_of(entries_.begin(), entries_.end(),
                     [](const Entry& entry) { return entry.description.has_value(); });
}

bool WorkerSet::AllHeard() const {
  return std::all_of(entries_.begin(), entries_.end(),
                     [](const Entry& entry) { return entry.heard; });
}

bool WorkerSet::Settled() const { return table_ != nullptr || !table_error_.ok(); }

absl::Status WorkerSet::AwaitTable(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  const auto settled =
      +[](WorkerSet* set) ABSL_NO_THREAD_SAFETY_ANALYSIS { return set->Settled(); };
  mutex_.AwaitWithDeadline(absl::Condition(settled, this), deadline);
  if (table_ == nullptr) BuildFirst();
  Publish();
  if (table_ != nullptr) return absl::OkStatus();
  return table_error_.ok() ? Missing() : table_error_;
}

absl::Status WorkerSet::Missing() const {
  std::set<size_t> needed;  // workers that could end a lack
  for (size_t i = 0; table_ == nullptr && i < entries_.size(); ++i) {
    if (!entries_[i].status.ok()) needed.insert(i);
  }
  for (size_t i = 0; table_ != nullptr && i < table_->groups().size(); ++i) {
    const std::vector<size_t>& holders = table_->groups()[i];
    const auto live = [this](size_t worker)
                          ABSL_NO_THREAD_SAFETY_ANALYSIS { return entries_[worker].status.ok(); };
    if (std::any_of(holders.begin(), holders.end(), live)) continue;
    needed.insert(holders.begin(), holders.end());
  }
  if (needed.empty()) return absl::OkStatus();
  // Those that never came, or were refused, may have held it too.
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (!entries_[i].description.has_value()) needed.insert(i);
  }
  std::vector<std::string> reasons;
  for (const size_t worker : needed) reasons.push_back(Reason(entries_[worker]));
  if (table_ == nullptr) reasons.push_back(NotHeld());
  return absl::UnavailableError(absl::StrJoin(reasons, "; "));
}

std::string WorkerSet::Reason(const Entry& entry) const {
  const bool named = absl::StrContains(entry.status.message(), entry.address);
  std::string reason = absl::StrCat(named ? "" : absl::StrCat("worker ", entry.address, ": "),
                                    entry.status.message());
  if (entry.description.has_value()) {
    absl::StrAppend(&reason, " (missing: ", ShardsText(*entry.description), ")");
  }
  return reason;
}

std::string WorkerSet::NotHeld() const {
  if (Described().empty()) return "no worker has said yet which experts it holds";
  return absl::StrCat("without these: ", Build().status().message());
}

std::shared_ptr<const Routes> WorkerSet::routes() const {
  absl::MutexLock lock(&mutex_);
  return routes_;
}

absl::Status WorkerSet::WhyUnusable(const ReplicaGroup& group) const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> reasons;
  for (const size_t worker : group.workers) {
    if (!entries_[worker].status.ok()) reasons.push_back(Reason(entries_[worker]));
  }
  if (reasons.empty()) reasons.push_back("the worker was away for a moment");
  return absl::UnavailableError(absl::StrJoin(reasons, "; "));
}

absl::Status WorkerSet::Ready() const {
  absl::MutexLock lock(&mutex_);
  return Missing();
}

std::vector<WorkerInfo> WorkerSet::Infos() const {
  absl::MutexLock lock(&mutex_);
  std::vector<WorkerInfo> infos;
  for (const Entry& entry : entries_) {
    WorkerInfo info;
    info.address = entry.address;
    info.connected = entry.status.ok();
    if (entry.description.has_value()) {
      info.method = entry.description->method;
      info.isa = entry.description->isa;
      info.shards = ShardsText(*entry.description);
    }
    infos.push_back(std::move(info));
  }
  return infos;
}

}  // namespace atelier
