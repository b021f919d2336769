#include "libs/client/row_split.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/types/span.h"

namespace atelier {
namespace {

// More choices per expert than this on average: kernels then spend their time computing, not
// reading weights.
constexpr size_t kPrefillRowsPerExpert = 4;

// The experts of a group, and where a row's choices among them are.
class GroupExperts {
 public:
  GroupExperts(const RoutedLayer& layer, const ReplicaGroup& group, const Routing& routing)
      : routing_(routing) {
    for (const size_t index : group.shards) {
      const RoutedShard& shard = layer.shards[index];
      held_.resize(std::max(held_.size(), static_cast<size_t>(shard.expert_end)), false);
      std::fill(held_.begin() + shard.expert_begin, held_.begin() + shard.expert_end, true);
    }
    count_ = static_cast<size_t>(std::count(held_.begin(), held_.end(), true));
  }

  bool Holds(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < held_.size() && held_[static_cast<size_t>(id)];
  }
  absl::Span<const int32_t> ChoicesOf(int row) const {
    const auto top_k = static_cast<size_t>(routing_.top_k);
    return {routing_.expert_ids + static_cast<size_t>(row) * top_k, top_k};
  }
  size_t NumOf(int row) const {
    const absl::Span<const int32_t> ids = ChoicesOf(row);
    return static_cast<size_t>(
        std::count_if(ids.begin(), ids.end(), [this](int32_t id) { return Holds(id); }));
  }
  std::vector<size_t> Of(int row) const {
    std::vector<size_t> experts;
    for (const int32_t id : ChoicesOf(row)) {
      if (Holds(id)) experts.push_back(static_cast<size_t>(id));
    }
    return experts;
  }
  size_t range() const { return held_.size(); }  // ids are below this
  size_t count() const { return count_; }

 private:
  const Routing& routing_;
  std::vector<bool> held_;
  size_t count_ = 0;
};

struct NeededRow {
  int row = 0;
  std::vector<size_t> experts;
};

// A replica's rows while they are chosen.
struct Share {
  std::vector<bool> active;  // by expert
  size_t num_active = 0;
  std::vector<int> rows;

  size_t Added(const NeededRow& row) const {
    size_t added = 0;
    for (const size_t expert : row.experts) added += active[expert] ? 0 : 1;
    return added;
  }
  void Take(const NeededRow& row) {
    num_active += Added(row);
    for (const size_t expert : row.experts) active[expert] = true;
    rows.push_back(row.row);
  }
};

std::vector<std::vector<int>> EqualRuns(const std::vector<int>& needed, size_t count) {
  std::vector<std::vector<int>> runs(count);
  for (size_t i = 0; i < needed.size(); ++i) runs[i * count / needed.size()].push_back(needed[i]);
  return runs;
}

std::vector<std::vector<int>> ByActivatedExperts(const std::vector<int>& needed,
                                                 const GroupExperts& experts, size_t count) {
  std::vector<Share> shares(count, Share{std::vector<bool>(experts.range(), false), 0, {}});
  for (const int number : needed) {
    const NeededRow row{number, experts.Of(number)};
    const auto cost = [&](const Share& share) {
      const size_t added = share.Added(row);
      return std::make_tuple(share.num_active + added, added);
    };
    std::min_element(shares.begin(), shares.end(), [&](const Share& a, const Share& b) {
      return cost(a) < cost(b);
    })->Take(row);
  }
  std::vector<std::vector<int>> rows;
  for (Share& share : shares) rows.push_back(std::move(share.rows));
  return rows;
}

// Whether a group has so much to do that its replicas spend their time computing.
bool IsLarge(const std::vector<int>& needed, const GroupExperts& experts, CallPriority priority) {
  if (priority != CallPriority::kPrefill) return false;
  size_t choices = 0;
  for (const int row : needed) choices += experts.NumOf(row);
  return choices > kPrefillRowsPerExpert * experts.count();
}

// The needed rows, divided over `count` replicas.
std::vector<std::vector<int>> Divide(const std::vector<int>& needed, const GroupExperts& experts,
                                     CallPriority priority, size_t count) {
  if (count == 1) return {needed};
  return IsLarge(needed, experts, priority) ? EqualRuns(needed, count)
                                            : ByActivatedExperts(needed, experts, count);
}

}  // namespace

std::vector<CallPart> SplitRows(
    const RoutedLayer& layer, const Routing& routing, CallPriority priority,
    absl::FunctionRef<std::vector<size_t>(const ReplicaGroup&)> replicas) {
  std::vector<CallPart> parts;
  for (const ReplicaGroup& group : layer.groups) {
    const GroupExperts experts(layer, group, routing);
    std::vector<int> needed;
    for (int row = 0; row < routing.num_tokens; ++row) {
      if (experts.NumOf(row) > 0) needed.push_back(row);
    }
    if (needed.empty()) continue;
    std::vector<size_t> workers = replicas(group);
    const size_t count = std::max<size_t>(workers.size(), 1);
    std::vector<std::vector<int>> shares = Divide(needed, experts, priority, count);
    for (size_t i = 0; i < count; ++i) {
      if (!shares[i].empty()) parts.push_back({&group, workers, std::move(shares[i])});
      if (!workers.empty()) std::rotate(workers.begin(), workers.begin() + 1, workers.end());
    }
  }
  return parts;
}

std::vector<int32_t> MaskExperts(const RoutedLayer& layer, const ReplicaGroup& group,
                                 const Routing& routing) {
  const GroupExperts experts(layer, group, routing);
  const size_t count = static_cast<size_t>(routing.num_tokens) * static_cast<size_t>(routing.top_k);
  std::vector<int32_t> ids(routing.expert_ids, routing.expert_ids + count);
  for (int32_t& id : ids) {
    if (!experts.Holds(id)) id = -1;
  }
  return ids;
}

}  // namespace atelier
