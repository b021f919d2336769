#include "libs/placement/placement_state.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <tuple>

#include "libs/base/check.h"

namespace atelier {

std::vector<int> DomainsOf(const std::vector<PlacementSite>& sites, FailureDomain apart) {
  std::map<std::tuple<std::string, int, std::string>, int> numbers;
  std::vector<int> domains;
  for (const PlacementSite& site : sites) {
    const bool by_node = apart != FailureDomain::kHost;
    const bool by_worker = apart == FailureDomain::kWorker;
    const auto key = std::make_tuple(site.host, by_node ? site.numa_node : 0,
                                     by_worker ? site.name : std::string());
    domains.push_back(numbers.try_emplace(key, static_cast<int>(numbers.size())).first->second);
  }
  return domains;
}

int CountDomains(const std::vector<int>& domains) {
  return domains.empty() ? 0 : *std::max_element(domains.begin(), domains.end()) + 1;
}

PlacementState::PlacementState(const PlacementProblem& problem, const std::vector<int>& domains,
                               const CopyCounts& counts)
    : problem_(problem), domains_(domains), counts_(counts), used_(problem.sites.size()) {
  for (const std::vector<PlacementUnit>& units : problem.layers) {
    holders_.emplace_back(units.size());
    loads_.emplace_back(problem.sites.size());
  }
}

int PlacementState::Busiest(int layer) const {
  const std::vector<double>& loads = loads_[static_cast<size_t>(layer)];
  return static_cast<int>(std::max_element(loads.begin(), loads.end()) - loads.begin());
}

double PlacementState::LowerBound(int layer) const {
  double sum = 0;
  double largest = 0;
  for (int unit = 0; unit < num_units(layer); ++unit) {
    sum += Unit(layer, unit).load;
    largest = std::max(largest, share(layer, unit));
  }
  return std::max(sum / num_sites(), largest);
}

bool PlacementState::Holds(int layer, int unit, int site) const {
  const std::vector<int>& held = holders(layer, unit);
  return std::find(held.begin(), held.end(), site) != held.end();
}

bool PlacementState::DomainFree(int layer, int unit, int site, int leaving) const {
  const int domain = domains_[static_cast<size_t>(site)];
  for (const int holder : holders(layer, unit)) {
    if (holder != leaving && domains_[static_cast<size_t>(holder)] == domain) return false;
  }
  return true;
}

bool PlacementState::CanSwap(int layer, int a, int site_a, int b, int site_b) const {
  const int64_t more_for_b = bytes(layer, a) - bytes(layer, b);
  return room(site_b) >= more_for_b && room(site_a) >= -more_for_b &&
         DomainFree(layer, a, site_b, site_a) && DomainFree(layer, b, site_a, site_b);
}

void PlacementState::Add(int layer, int unit, int site) {
  ATELIER_DCHECK(CanAdd(layer, unit, site));
  std::vector<int>& held = holders_[static_cast<size_t>(layer)][static_cast<size_t>(unit)];
  held.insert(std::lower_bound(held.begin(), held.end(), site), site);
  used_[static_cast<size_t>(site)] += bytes(layer, unit);
  loads_[static_cast<size_t>(layer)][static_cast<size_t>(site)] += share(layer, unit);
}

void PlacementState::Remove(int layer, int unit, int site) {
  std::vector<int>& held = holders_[static_cast<size_t>(layer)][static_cast<size_t>(unit)];
  const auto found = std::find(held.begin(), held.end(), site);
  ATELIER_CHECK(found != held.end());
  held.erase(found);
  used_[static_cast<size_t>(site)] -= bytes(layer, unit);
  loads_[static_cast<size_t>(layer)][static_cast<size_t>(site)] -= share(layer, unit);
}

void PlacementState::Clear(int layer) {
  for (int unit = 0; unit < num_units(layer); ++unit) {
    while (!holders(layer, unit).empty()) Remove(layer, unit, holders(layer, unit).back());
  }
}

namespace {

struct Step {
  int unit = -1;
  int to = -1;
  int back = -1;     // the unit that comes in exchange, -1 = none
  double gain = 0;   // what the busier of the two sites has less afterwards
  double value = 0;  // gain for each copy moved
};

// The best single step that makes `from` less busy and nobody as busy as it was.
class StepSearch {
 public:
  StepSearch(const PlacementState& state, int layer, int from)
      : state_(state), layer_(layer), from_(from) {
    for (int unit = 0; unit < state.num_units(layer); ++unit) {
      for (const int site : state.holders(layer, unit)) copies_.push_back({unit, site});
    }
  }

  Step Best() {
    for (const Copy& copy : copies_) {
      if (copy.site != from_) continue;
      TryMoves(copy.unit);
      TrySwaps(copy.unit);
    }
    return best_;
  }

 private:
  struct Copy {
    int unit;
    int site;
  };

  // Taking `less` from the one and giving it to the other.
  double Gain(int to, double less) const {
    const double before = state_.load(layer_, from_);
    return before - std::max(before - less, state_.load(layer_, to) + less);
  }
  void TryMoves(int unit) {
    for (int to = 0; to < state_.num_sites(); ++to) {
      const double gain = Gain(to, state_.share(layer_, unit));
      if (gain <= best_.value || to == from_ || !state_.CanMove(layer_, unit, from_, to)) continue;
      best_ = {unit, to, -1, gain, gain};
    }
  }
  void TrySwaps(int unit) {
    for (const Copy& other : copies_) {
      if (other.site == from_) continue;
      const double gain =
          Gain(other.site, state_.share(layer_, unit) - state_.share(layer_, other.unit));
      if (gain / 2 <= best_.value || !state_.CanSwap(layer_, unit, from_, other.unit, other.site)) {
        continue;
      }
      best_ = {unit, other.site, other.unit, gain, gain / 2};
    }
  }

  const PlacementState& state_;
  const int layer_;
  const int from_;
  std::vector<Copy> copies_;
  Step best_;
};

void Apply(const Step& step, int layer, int from, PlacementState& state) {
  state.Remove(layer, step.unit, from);
  if (step.back >= 0) state.Remove(layer, step.back, step.to);
  state.Add(layer, step.unit, step.to);
  if (step.back >= 0) state.Add(layer, step.back, from);
}

}  // namespace

bool Rebalance(PlacementState& state, int layer, double goal) {
  // Each step makes one of the busiest less busy; more than a few for each copy gain next to
  // nothing.
  const int max_steps = 4 * state.num_units(layer) + 64;
  for (int step = 0; step < max_steps; ++step) {
    const int from = state.Busiest(layer);
    const double before = state.load(layer, from);
    if (before <= goal) return true;
    const Step best = StepSearch(state, layer, from).Best();
    if (best.gain <= before * 1e-9) return false;
    Apply(best, layer, from, state);
  }
  return state.MaxLoad(layer) <= goal;
}

}  // namespace atelier
