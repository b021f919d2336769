#include "libs/client/worker_set.h"

#include <algorithm>
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
  if (now.shards != before.shards) {
    return changed("shards", ShardsText(before), ShardsText(now));
  }
  if (now.method == before.method) return absl::OkStatus();
  // Texts begun, and keys and values kept for later ones, are of the old numbers.
  return changed("method", before.method, now.method);
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
  if (!news.ok()) return SetStatus(entry, news.status());
  if (news->state != WorkerState::kServing) {
    return SetStatus(entry, absl::UnavailableError(absl::StrCat("worker ", entry.address, " is ",
                                                                WorkerStateName(news->state))));
  }
  Accept(worker, *news);
}

// The routes are made once, of what every worker held then. A worker that comes back with the same
// is used again; one that holds anything else is refused: calls must not reach it.
void WorkerSet::Accept(size_t worker, const WorkerDescription& description) {
  Entry& entry = entries_[worker];
  if (table_ != nullptr) {
    const absl::Status same = CheckSameContents(*entry.description, description);
    if (!same.ok()) {
      logger_.Error("worker_refused", {Kv("worker", entry.address), Kv("reason", same.message())});
      return SetStatus(entry, absl::FailedPreconditionError(absl::StrCat(
                                  "worker ", entry.address, " came back changed: ", same.message(),
                                  "; restart it as it was, or restart this side too")));
    }
  }
  entry.description = description;
  if (table_ == nullptr && AllDescribed()) BuildTable();
  SetStatus(entry, absl::OkStatus());
}

void WorkerSet::BuildTable() {
  std::vector<DescribedWorker> workers;
  for (const Entry& each : entries_) workers.push_back({each.address, *each.description});
  absl::StatusOr<RoutingTable> table = RoutingTable::Build(workers, needs_);
  table_error_ = table.status();
  if (!table.ok()) return;
  table_ = std::make_shared<const RoutingTable>(*std::move(table));
  WarnOfMixedMethods(workers);
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
    if (entry.was_connected && metrics_ != nullptr) metrics_->Reconnects(entry.address).Increment();
    entry.was_connected = true;
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

bool WorkerSet::Settled() const { return table_ != nullptr || !table_error_.ok(); }

absl::Status WorkerSet::AwaitTable(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  const auto settled =
      +[](WorkerSet* set) ABSL_NO_THREAD_SAFETY_ANALYSIS { return set->Settled(); };
  mutex_.AwaitWithDeadline(absl::Condition(settled, this), deadline);
  if (table_ != nullptr) return absl::OkStatus();
  return table_error_.ok() ? Missing() : table_error_;
}

absl::Status WorkerSet::Missing() const {
  std::vector<std::string> reasons;
  for (const Entry& entry : entries_) {
    if (entry.status.ok()) continue;
    reasons.push_back(Reason(entry));
  }
  if (reasons.empty()) return absl::OkStatus();
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
  std::vector<DescribedWorker> workers;
  for (const Entry& each : entries_) {
    if (each.description.has_value()) workers.push_back({each.address, *each.description});
  }
  if (workers.empty()) return "no worker has said yet which experts it holds";
  return absl::StrCat("without these: ", RoutingTable::Build(workers, needs_).status().message());
}

std::shared_ptr<const RoutingTable> WorkerSet::table() const {
  absl::MutexLock lock(&mutex_);
  return table_;
}

absl::Status WorkerSet::Usable(size_t worker) const {
  absl::MutexLock lock(&mutex_);
  const Entry& entry = entries_[worker];
  return entry.status.ok() ? absl::OkStatus() : absl::UnavailableError(Reason(entry));
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
