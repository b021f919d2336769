#include "libs/placement/eplb.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "libs/base/status_macros.h"

namespace atelier {
namespace {

using Loads = std::vector<double>;

// Packs items into bins of equally many, the heaviest first, each into the lightest bin that is not
// full. By bin, the items in the order in which they came.
std::vector<std::vector<int>> Pack(const Loads& loads, int num_bins) {
  const size_t capacity = loads.size() / static_cast<size_t>(num_bins);
  std::vector<std::vector<int>> bins(static_cast<size_t>(num_bins));
  std::vector<int> order(loads.size());
  std::iota(order.begin(), order.end(), 0);
  if (capacity == 1) {
    for (const int item : order) bins[static_cast<size_t>(item)] = {item};
    return bins;
  }
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return loads[static_cast<size_t>(a)] > loads[static_cast<size_t>(b)];
  });
  Loads sums(bins.size(), 0);
  for (const int item : order) {
    size_t lightest = bins.size();
    for (size_t bin = 0; bin < bins.size(); ++bin) {
      const bool may = bins[bin].size() < capacity;
      if (may && (lightest == bins.size() || sums[bin] < sums[lightest])) lightest = bin;
    }
    bins[lightest].push_back(item);
    sums[lightest] += loads[static_cast<size_t>(item)];
  }
  return bins;
}

struct Copies {
  std::vector<int> items;  // of each slot: one for each item, then those that are repeated
  std::vector<int> count;  // of each item
};

Copies Replicate(const Loads& loads, int num_slots) {
  Copies copies;
  copies.items.resize(loads.size());
  std::iota(copies.items.begin(), copies.items.end(), 0);
  copies.count.assign(loads.size(), 1);
  for (int slot = static_cast<int>(loads.size()); slot < num_slots; ++slot) {
    size_t hottest = 0;
    const auto share = [&](size_t item) { return loads[item] / copies.count[item]; };
    for (size_t item = 1; item < loads.size(); ++item) {
      if (share(item) > share(hottest)) hottest = item;
    }
    copies.items.push_back(static_cast<int>(hottest));
    ++copies.count[hottest];
  }
  return copies;
}

// By node, its experts: whole groups, the nodes about equally loaded.
std::vector<std::vector<int>> ExpertsOfNodes(const Loads& loads, const EplbShape& shape) {
  const size_t group_size = loads.size() / static_cast<size_t>(shape.groups);
  Loads group_loads(static_cast<size_t>(shape.groups), 0);
  for (size_t expert = 0; expert < loads.size(); ++expert) {
    group_loads[expert / group_size] += loads[expert];
  }
  std::vector<std::vector<int>> nodes;
  for (const std::vector<int>& groups : Pack(group_loads, shape.nodes)) {
    std::vector<int> experts;
    for (const int group : groups) {
      for (size_t i = 0; i < group_size; ++i) {
        experts.push_back(static_cast<int>(static_cast<size_t>(group) * group_size + i));
      }
    }
    nodes.push_back(std::move(experts));
  }
  return nodes;
}

// The slots of one node, device by device.
std::vector<int> FillNode(const Loads& loads, const std::vector<int>& experts,
                          const EplbShape& shape) {
  Loads of_node;
  for (const int expert : experts) of_node.push_back(loads[static_cast<size_t>(expert)]);
  const Copies copies = Replicate(of_node, shape.slots / shape.nodes);
  Loads of_slots;
  for (const int item : copies.items) {
    of_slots.push_back(of_node[static_cast<size_t>(item)] /
                       copies.count[static_cast<size_t>(item)]);
  }
  std::vector<int> slots;
  for (const std::vector<int>& device : Pack(of_slots, shape.devices / shape.nodes)) {
    for (const int slot : device) {
      slots.push_back(experts[static_cast<size_t>(copies.items[static_cast<size_t>(slot)])]);
    }
  }
  return slots;
}

absl::Status Check(const std::vector<std::vector<double>>& loads, const EplbShape& shape) {
  const auto fails = [](const auto&... text) {
    return absl::InvalidArgumentError(absl::StrCat(text...));
  };
  if (loads.empty() || loads[0].empty()) return fails("loads: there is nothing to place");
  const auto experts = static_cast<int>(loads[0].size());
  for (const Loads& layer : loads) {
    if (layer.size() != loads[0].size()) return fails("loads: layers have different lengths");
  }
  if (shape.groups < 1 || experts % shape.groups != 0) {
    return fails("groups=", shape.groups, " does not divide ", experts, " experts");
  }
  if (shape.nodes < 1 || shape.devices < 1 || shape.devices % shape.nodes != 0) {
    return fails("nodes=", shape.nodes, " does not divide devices=", shape.devices);
  }
  if (shape.slots < experts || shape.slots % shape.devices != 0) {
    return fails("slots=", shape.slots, " must be at least ", experts,
                 ", the experts, and a multiple of devices=", shape.devices);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<EplbPlan> BalanceByEplb(const std::vector<std::vector<double>>& loads,
                                       const EplbShape& asked) {
  ATELIER_RETURN_IF_ERROR(Check(loads, asked));
  EplbShape shape = asked;
  if (shape.groups % shape.nodes != 0) shape.groups = shape.nodes = 1;
  EplbPlan plan;
  for (const Loads& layer : loads) {
    std::vector<int> slots;
    for (const std::vector<int>& experts : ExpertsOfNodes(layer, shape)) {
      const std::vector<int> of_node = FillNode(layer, experts, shape);
      slots.insert(slots.end(), of_node.begin(), of_node.end());
    }
    std::vector<std::vector<int>> of_expert(layer.size());
    for (size_t slot = 0; slot < slots.size(); ++slot) {
      of_expert[static_cast<size_t>(slots[slot])].push_back(static_cast<int>(slot));
    }
    plan.expert_of_slot.push_back(std::move(slots));
    plan.slots_of_expert.push_back(std::move(of_expert));
  }
  return plan;
}

}  // namespace atelier
