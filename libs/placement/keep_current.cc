#include "libs/placement/keep_current.h"

#include <algorithm>
#include <tuple>
#include <vector>

namespace atelier {
namespace {

void DropSurplus(int layer, int unit, PlacementState& state) {
  while (static_cast<int>(state.holders(layer, unit).size()) > state.count(layer, unit)) {
    const std::vector<int>& held = state.holders(layer, unit);
    state.Remove(layer, unit, *std::max_element(held.begin(), held.end(), [&](int a, int b) {
                   return state.load(layer, a) < state.load(layer, b);
                 }));
  }
}

// What lacks memory or shares a domain today has to go anyway.
void TakeCurrent(const Holders& current, PlacementState& state) {
  for (int layer = 0; layer < state.num_layers(); ++layer) {
    const LayerHolders& held = current[static_cast<size_t>(layer)];
    for (int unit = 0; unit < state.num_units(layer); ++unit) {
      for (const int site : held[static_cast<size_t>(unit)]) {
        if (state.CanAdd(layer, unit, site)) state.Add(layer, unit, site);
      }
    }
    for (int unit = 0; unit < state.num_units(layer); ++unit) DropSurplus(layer, unit, state);
  }
}

int LeastLoaded(int layer, int unit, const PlacementState& state) {
  int best = -1;
  const auto cost = [&](int site) {
    return std::make_tuple(state.load(layer, site), state.used(site));
  };
  for (int site = 0; site < state.num_sites(); ++site) {
    const bool may = state.CanAdd(layer, unit, site);
    if (may && (best < 0 || cost(site) < cost(best))) best = site;
  }
  return best;
}

// Moves another unit of the layer away from a full site that may take this one.
bool MakeRoom(int layer, int unit, PlacementState& state) {
  for (int site = 0; site < state.num_sites(); ++site) {
    if (!state.DomainFree(layer, unit, site)) continue;
    for (int other = 0; other < state.num_units(layer); ++other) {
      const bool makes_room =
          state.Holds(layer, other, site) &&
          state.room(site) + state.bytes(layer, other) >= state.bytes(layer, unit);
      for (int to = 0; makes_room && to < state.num_sites(); ++to) {
        if (to == site || !state.CanMove(layer, other, site, to)) continue;
        state.Remove(layer, other, site);
        state.Add(layer, other, to);
        return true;
      }
    }
  }
  return false;
}

bool AddMissing(int layer, PlacementState& state) {
  std::vector<int> missing;
  for (int unit = 0; unit < state.num_units(layer); ++unit) {
    if (!state.complete(layer, unit)) missing.push_back(unit);
  }
  std::stable_sort(missing.begin(), missing.end(),
                   [&](int a, int b) { return state.share(layer, a) > state.share(layer, b); });
  for (const int unit : missing) {
    while (!state.complete(layer, unit)) {
      int site = LeastLoaded(layer, unit, state);
      if (site < 0 && MakeRoom(layer, unit, state)) site = LeastLoaded(layer, unit, state);
      if (site < 0) return false;
      state.Add(layer, unit, site);
    }
  }
  return true;
}

// False leaves the layer as it was.
bool TakeLayer(int layer, const LayerHolders& from, PlacementState& state) {
  const LayerHolders before = state.layer(layer);
  const auto fill = [&](const LayerHolders& holders) {
    state.Clear(layer);
    for (int unit = 0; unit < state.num_units(layer); ++unit) {
      for (const int site : holders[static_cast<size_t>(unit)]) {
        if (!state.CanAdd(layer, unit, site)) return false;
        state.Add(layer, unit, site);
      }
    }
    return true;
  };
  if (fill(from)) return true;
  fill(before);
  return false;
}

}  // namespace

std::optional<Holders> KeepCurrent(const PlacementProblem& problem, const PlacementState* anew,
                                   PlacementState& state) {
  TakeCurrent(problem.current, state);
  for (int layer = 0; layer < state.num_layers(); ++layer) {
    if (!AddMissing(layer, state)) return std::nullopt;
  }
  for (int layer = 0; layer < state.num_layers(); ++layer) {
    const double best = anew != nullptr ? anew->MaxLoad(layer) : state.LowerBound(layer);
    if (Rebalance(state, layer, best * (1 + problem.tolerance)) || anew == nullptr) continue;
    if (!TakeLayer(layer, anew->layer(layer), state)) return std::nullopt;
  }
  return state.TakeHolders();
}

}  // namespace atelier
