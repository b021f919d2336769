#include "libs/client/worker_pool.h"

#include <algorithm>
#include <array>
#include <random>
#include <utility>

#include "absl/strings/match.h"

namespace atelier {
namespace {

int DistanceOf(const std::string& address) {
  if (absl::StartsWith(address, "shm:")) return 0;
  return absl::StartsWith(address, "unix:") ? 1 : 2;
}

std::vector<int> DistancesOf(const std::vector<std::string>& addresses) {
  std::vector<int> distances;
  for (const std::string& address : addresses) distances.push_back(DistanceOf(address));
  return distances;
}

}  // namespace

WorkerPool::WorkerPool(const ClientOptions& options, Clock& clock, const Logger& logger,
                       ClientMetrics* metrics)
    : options_(options),
      clock_(clock),
      logger_(logger),
      metrics_(metrics),
      distances_(DistancesOf(options.workers)),
      first_choice_(std::random_device{}()),
      workers_(options.workers,
               {options.model_digest, options.hidden_size, options.num_experts, options.moe_layers},
               logger, metrics),
      health_(options.workers.size(), options.failover, clock,
              [this](size_t worker, bool ejected) { OnEjection(worker, ejected); }),
      budget_(options.failover.hedge_budget),
      probes_(options.workers.size()) {
  for (const std::string& address : options.workers) {
    if (metrics == nullptr) break;
    counters_.push_back({&metrics->CallSeconds(address),
                         {&metrics->Failovers(address), &metrics->Hedges(address),
                          &metrics->NotFinite(address), &metrics->LateAnswers(address)},
                         &metrics->Ejections(address),
                         &metrics->Ejected(address)});
  }
  for (size_t i = 0; i < options.workers.size(); ++i) {
    connections_.push_back(WorkerConnection::Create(
        options.workers[i], clock, logger,
        [this, i](const absl::StatusOr<WorkerDescription>& news) {
          if (news.ok()) health_.Reconnected(i);
          workers_.Update(i, news);
        },
        options.security));
  }
}

WorkerPool::~WorkerPool() {
  connections_.clear();
  absl::MutexLock lock(&probes_mutex_);
  probes_.clear();
}

std::unique_ptr<ForwardInFlight> WorkerPool::Send(size_t worker,
                                                  std::shared_ptr<const EncodedForward> request,
                                                  absl::Time deadline,
                                                  WorkerConnection::DoneCallback done) {
  return connections_[worker]->Forward(std::move(request), deadline, std::move(done));
}

void WorkerPool::Probe(const ReplicaGroup& group, const Routes& routes, int rows,
                       const std::shared_ptr<const EncodedForward>& request) {
  for (const size_t worker : group.workers) {
    if (!routes.Live(worker) || !health_.TakeProbe(worker)) continue;
    const absl::Time start = clock_.Now();
    const absl::Duration patience =
        std::max(options_.failover.min_stall, health_.PatienceWith(worker, worker, rows).late);
    AskForSign(worker);
    WorkerConnection* const connection = connections_[worker].get();
    absl::MutexLock lock(&probes_mutex_);
    probes_[worker] =
        Send(worker, request, start + patience,
             [this, worker, connection, rows, start](ForwardReply reply) {
               if (reply.status.ok()) health_.Answered(worker, rows, clock_.Now() - start);
               if (!health_.ProbeEnded(worker, reply.status.ok())) return;
               connection->Reset(absl::UnavailableError("it gives signs of life, but no answers"));
             });
  }
}

void WorkerPool::AskForSign(size_t worker) {
  connections_[worker]->AskForSign([this, worker] { health_.Heard(worker); });
}

std::vector<size_t> WorkerPool::Choices(const ReplicaGroup& group, const Routes& routes,
                                        int layer) const {
  std::vector<size_t> live;
  for (const size_t worker : group.workers) {
    if (routes.Live(worker)) live.push_back(worker);
  }
  if (live.size() < 2) return live;
  std::vector<size_t> choices = health_.Trusted(live);
  std::stable_sort(choices.begin(), choices.end(),
                   [this](size_t a, size_t b) { return distances_[a] < distances_[b]; });
  // Layers take turns among the nearest, so that each is heard of all the time.
  const auto end = std::find_if(choices.begin(), choices.end(), [&](size_t worker) {
    return distances_[worker] != distances_[choices[0]];
  });
  const auto nearest = static_cast<size_t>(end - choices.begin());
  const size_t turn = (first_choice_ + static_cast<size_t>(layer)) % nearest;
  std::rotate(choices.begin(), choices.begin() + static_cast<std::ptrdiff_t>(turn), end);
  return choices;
}

void WorkerPool::Count(Event event, size_t worker) {
  if (!counters_.empty()) counters_[worker].events[static_cast<size_t>(event)]->Increment();
}

void WorkerPool::CountAnswer(size_t worker, absl::Duration latency, const absl::Status& status) {
  if (metrics_ == nullptr) return;
  if (status.ok()) {
    counters_[worker].call_seconds->Observe(absl::ToDoubleSeconds(latency));
  } else {
    metrics_->CallErrors(options_.workers[worker], absl::StatusCodeToString(status.code()))
        .Increment();
  }
}

void WorkerPool::OnEjection(size_t worker, bool ejected) {
  logger_.Warning(ejected ? "worker_ejected" : "worker_trusted_again",
                  {Kv("worker", options_.workers[worker])});
  if (counters_.empty()) return;
  if (ejected) counters_[worker].ejections->Increment();
  counters_[worker].ejected->Set(ejected ? 1 : 0);
}

}  // namespace atelier
