#include "libs/placement/place_anew.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <tuple>

namespace atelier {
namespace {

// Layers are placed one after the other; the first ones leave the last ones their part of every
// site's memory.
class Quota {
 public:
  explicit Quota(const PlacementState& state) : state_(state) {
    for (int layer = 0; layer < state.num_layers(); ++layer) {
      for (int unit = 0; unit < state.num_units(layer); ++unit) {
        total_ += static_cast<double>(state.bytes(layer, unit)) * state.count(layer, unit);
      }
      until_.push_back(total_);
    }
  }
  // That the site may still take of the layer.
  int64_t Room(int layer, int site) const {
    const int64_t memory = state_.used(site) + state_.room(site);
    if (layer + 1 == state_.num_layers()) return state_.room(site);
    const double part = until_[static_cast<size_t>(layer)] / total_;
    return std::llround(static_cast<double>(memory) * part) - state_.used(site);
  }

 private:
  const PlacementState& state_;
  std::vector<double> until_;  // bytes of the layers up to this one
  double total_ = 0;
};

using RoomOf = std::function<int64_t(int layer, int site)>;

struct UnitId {
  int layer;
  int unit;
};

std::vector<UnitId> UnitsOf(const PlacementState& state, int layer) {
  std::vector<UnitId> units;
  for (int unit = 0; unit < state.num_units(layer); ++unit) units.push_back({layer, unit});
  return units;
}

bool PlaceOnLeastLoaded(int layer, const RoomOf& room, PlacementState& state) {
  std::vector<UnitId> units = UnitsOf(state, layer);
  std::stable_sort(units.begin(), units.end(), [&](UnitId a, UnitId b) {
    return state.share(layer, a.unit) > state.share(layer, b.unit);
  });
  for (const UnitId id : units) {
    while (!state.complete(layer, id.unit)) {
      int best = -1;
      const auto cost = [&](int site) {
        return std::make_tuple(state.load(layer, site), state.used(site));
      };
      for (int site = 0; site < state.num_sites(); ++site) {
        const bool may = room(layer, site) >= state.bytes(layer, id.unit) &&
                         state.DomainFree(layer, id.unit, site);
        if (may && (best < 0 || cost(site) < cost(best))) best = site;
      }
      if (best < 0) return false;
      state.Add(layer, id.unit, best);
    }
  }
  return true;
}

// The units with most copies first, each into the domains with most room: for units of one size no
// other order places more.
int64_t PlaceWhereRoomIs(std::vector<UnitId> units, const std::vector<int>& domains,
                         const RoomOf& room, PlacementState& state) {
  std::stable_sort(units.begin(), units.end(), [&](UnitId a, UnitId b) {
    const auto key = [&](UnitId id) {
      return std::make_tuple(-state.count(id.layer, id.unit), -state.bytes(id.layer, id.unit));
    };
    return key(a) < key(b);
  });
  int64_t missing = 0;
  std::vector<int64_t> fits(static_cast<size_t>(CountDomains(domains)));
  for (const auto [layer, unit] : units) {
    const int64_t bytes = state.bytes(layer, unit);
    while (!state.complete(layer, unit)) {
      std::fill(fits.begin(), fits.end(), 0);
      for (int site = 0; site < state.num_sites(); ++site) {
        fits[static_cast<size_t>(domains[static_cast<size_t>(site)])] +=
            std::max<int64_t>(room(layer, site), 0) / bytes;
      }
      int best = -1;
      const auto worth = [&](int site) {
        const int domain = domains[static_cast<size_t>(site)];
        return std::make_tuple(fits[static_cast<size_t>(domain)], room(layer, site));
      };
      for (int site = 0; site < state.num_sites(); ++site) {
        const bool may = room(layer, site) >= bytes && state.DomainFree(layer, unit, site);
        if (may && (best < 0 || worth(site) > worth(best))) best = site;
      }
      if (best < 0) {
        missing += bytes * (state.count(layer, unit) -
                            static_cast<int64_t>(state.holders(layer, unit).size()));
        break;
      }
      state.Add(layer, unit, best);
    }
  }
  return missing;
}

// One layer; false leaves it incomplete.
bool PlaceLayer(int layer, const std::vector<int>& domains, const Quota& quota,
                PlacementState& state) {
  const RoomOf in_quota = [&](int of, int site) { return quota.Room(of, site); };
  if (PlaceOnLeastLoaded(layer, in_quota, state)) return true;
  state.Clear(layer);
  return PlaceWhereRoomIs(UnitsOf(state, layer), domains, in_quota, state) == 0;
}

}  // namespace

int64_t PlaceAnew(const PlacementProblem& problem, const std::vector<int>& domains,
                  PlacementState& state) {
  // So near the best that more steps gain nothing worth the time.
  constexpr double kGoodEnough = 1.01;
  const Quota quota(state);
  bool placed = true;
  for (int layer = 0; placed && layer < state.num_layers(); ++layer) {
    placed = PlaceLayer(layer, domains, quota, state);
  }
  if (!placed) {
    std::vector<UnitId> all;
    for (int layer = 0; layer < state.num_layers(); ++layer) {
      state.Clear(layer);
      const std::vector<UnitId> units = UnitsOf(state, layer);
      all.insert(all.end(), units.begin(), units.end());
    }
    const RoomOf all_room = [&](int, int site) { return state.room(site); };
    const int64_t missing = PlaceWhereRoomIs(std::move(all), domains, all_room, state);
    if (missing > 0) return missing;
  }
  for (int layer = 0; layer < static_cast<int>(problem.layers.size()); ++layer) {
    Rebalance(state, layer, kGoodEnough * state.LowerBound(layer));
  }
  return 0;
}

}  // namespace atelier
