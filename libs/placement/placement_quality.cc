#include "libs/placement/placement_quality.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "libs/placement/placement_state.h"

namespace atelier {
namespace {

constexpr int kNobody = -1;

// What each site has of a layer when the sites of domain `lost` are gone.
struct LayerLoads {
  std::vector<double> of_site;
  int64_t uncovered = 0;
};

LayerLoads LoadsAfter(const std::vector<PlacementUnit>& units, const LayerHolders& holders,
                      const std::vector<int>& domains, int lost) {
  LayerLoads loads;
  loads.of_site.resize(domains.size());
  for (size_t unit = 0; unit < units.size(); ++unit) {
    std::vector<int> left;
    for (const int site : holders[unit]) {
      if (domains[static_cast<size_t>(site)] != lost) left.push_back(site);
    }
    if (left.empty()) ++loads.uncovered;
    for (const int site : left) {
      loads.of_site[static_cast<size_t>(site)] +=
          units[unit].load / static_cast<double>(left.size());
    }
  }
  return loads;
}

double BalanceOf(const std::vector<double>& loads, const std::vector<int>& domains, int lost) {
  double sum = 0;
  double busiest = 0;
  int alive = 0;
  for (size_t site = 0; site < loads.size(); ++site) {
    if (domains[site] == lost) continue;
    ++alive;
    sum += loads[site];
    busiest = std::max(busiest, loads[site]);
  }
  return busiest > 0 ? sum / alive / busiest : 1;
}

struct AfterLoss {
  int64_t uncovered = 0;
  Balancedness balance;
};

AfterLoss Lose(const PlacementProblem& problem, const Holders& holders,
               const std::vector<int>& domains, int lost) {
  AfterLoss after;
  double sum = 0;
  for (size_t layer = 0; layer < holders.size(); ++layer) {
    const LayerLoads loads = LoadsAfter(problem.layers[layer], holders[layer], domains, lost);
    after.uncovered += loads.uncovered;
    const double balance = BalanceOf(loads.of_site, domains, lost);
    sum += balance;
    after.balance.worst = std::min(after.balance.worst, balance);
  }
  after.balance.mean = sum / static_cast<double>(holders.size());
  return after;
}

std::string DomainText(const PlacementSite& site, FailureDomain domain) {
  if (domain == FailureDomain::kWorker) return site.name;
  if (domain == FailureDomain::kHost) return site.host;
  return absl::StrCat(site.host, "/", site.numa_node);
}

LossQuality MeasureLosses(const PlacementProblem& problem, const Holders& holders,
                          FailureDomain domain) {
  const std::vector<int> domains = DomainsOf(problem.sites, domain);
  LossQuality quality;
  quality.domain = domain;
  quality.domains = CountDomains(domains);
  int64_t sum = 0;
  for (int lost = 0; lost < quality.domains; ++lost) {
    const AfterLoss after = Lose(problem, holders, domains, lost);
    sum += after.uncovered;
    if (after.uncovered > quality.uncovered) {
      quality.uncovered = after.uncovered;
      const auto site = std::find(domains.begin(), domains.end(), lost) - domains.begin();
      quality.worst = DomainText(problem.sites[static_cast<size_t>(site)], domain);
    }
    quality.balance.mean = std::min(quality.balance.mean, after.balance.mean);
    quality.balance.worst = std::min(quality.balance.worst, after.balance.worst);
  }
  quality.mean_uncovered = static_cast<double>(sum) / quality.domains;
  return quality;
}

bool HasToday(const PlacementProblem& problem, size_t layer, size_t unit, int site) {
  if (problem.current.empty()) return false;
  const std::vector<int>& held = problem.current[layer][unit];
  return std::find(held.begin(), held.end(), site) != held.end();
}

}  // namespace

PlacementQuality MeasurePlacement(const PlacementProblem& problem, const Holders& holders) {
  PlacementQuality quality;
  quality.site_bytes.resize(problem.sites.size());
  quality.site_load.resize(problem.sites.size());
  for (size_t layer = 0; layer < holders.size(); ++layer) {
    for (size_t unit = 0; unit < holders[layer].size(); ++unit) {
      const PlacementUnit& placed = problem.layers[layer][unit];
      for (const int site : holders[layer][unit]) {
        quality.site_bytes[static_cast<size_t>(site)] += placed.bytes;
        quality.site_load[static_cast<size_t>(site)] +=
            placed.load / static_cast<double>(holders[layer][unit].size());
        if (!HasToday(problem, layer, unit, site)) quality.moved_bytes += placed.bytes;
      }
    }
  }
  const std::vector<int> domains = DomainsOf(problem.sites, FailureDomain::kWorker);
  quality.balance = Lose(problem, holders, domains, kNobody).balance;
  for (const FailureDomain domain :
       {FailureDomain::kWorker, FailureDomain::kNumaNode, FailureDomain::kHost}) {
    quality.losses.push_back(MeasureLosses(problem, holders, domain));
  }
  return quality;
}

Holders HoldersOf(const EplbPlan& plan, const EplbShape& shape) {
  const int slots_per_device = shape.slots / shape.devices;
  Holders holders;
  for (const std::vector<std::vector<int>>& slots_of_expert : plan.slots_of_expert) {
    LayerHolders layer;
    for (const std::vector<int>& slots : slots_of_expert) {
      std::vector<int> devices;
      for (const int slot : slots) devices.push_back(slot / slots_per_device);
      std::sort(devices.begin(), devices.end());
      devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
      layer.push_back(std::move(devices));
    }
    holders.push_back(std::move(layer));
  }
  return holders;
}

int64_t WastedCopies(const EplbPlan& plan, const EplbShape& shape) {
  int64_t wasted = 0;
  for (const LayerHolders& layer : HoldersOf(plan, shape)) {
    wasted += shape.slots;
    for (const std::vector<int>& devices : layer) wasted -= static_cast<int64_t>(devices.size());
  }
  return wasted;
}

}  // namespace atelier
