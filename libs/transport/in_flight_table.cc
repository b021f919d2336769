#include "libs/transport/in_flight_table.h"

#include <algorithm>
#include <utility>

namespace atelier {

uint64_t InFlightTable::Add(Part part) {
  absl::MutexLock lock(&mutex_);
  parts_.emplace(++last_id_, std::move(part));
  return last_id_;
}

std::optional<InFlightTable::Part> InFlightTable::Take(uint64_t id) {
  absl::MutexLock lock(&mutex_);
  const auto it = parts_.find(id);
  if (it == parts_.end()) return std::nullopt;
  Part part = std::move(it->second);
  parts_.erase(it);
  return part;
}

std::vector<uint64_t> InFlightTable::Remove(const ConnectionCall& call) {
  std::vector<uint64_t> ids;
  absl::MutexLock lock(&mutex_);
  absl::erase_if(parts_, [&](const auto& entry) {
    if (entry.second.call.get() != &call) return false;
    ids.push_back(entry.first);
    return true;
  });
  return ids;
}

std::vector<InFlightTable::Expired> InFlightTable::TakeExpired(absl::Time now) {
  std::vector<Expired> expired;
  absl::MutexLock lock(&mutex_);
  absl::erase_if(parts_, [&](const auto& entry) {
    const std::shared_ptr<ConnectionCall>& call = entry.second.call;
    if (call->deadline() > now) return false;
    auto it = std::find_if(expired.begin(), expired.end(),
                           [&](const Expired& e) { return e.call == call; });
    if (it == expired.end()) it = expired.insert(it, Expired{call, {}});
    it->ids.push_back(entry.first);
    return true;
  });
  return expired;
}

std::vector<std::shared_ptr<ConnectionCall>> InFlightTable::TakeAll() {
  absl::flat_hash_map<uint64_t, Part> parts;
  {
    absl::MutexLock lock(&mutex_);
    parts.swap(parts_);
  }
  std::vector<std::shared_ptr<ConnectionCall>> calls;
  for (auto& [id, part] : parts) calls.push_back(std::move(part.call));
  std::sort(calls.begin(), calls.end());
  calls.erase(std::unique(calls.begin(), calls.end()), calls.end());
  return calls;
}

bool InFlightTable::empty() const {
  absl::MutexLock lock(&mutex_);
  return parts_.empty();
}

absl::Time InFlightTable::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, part] : parts_) next = std::min(next, part.call->deadline());
  return next;
}

}  // namespace atelier
