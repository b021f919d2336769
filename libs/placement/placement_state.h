#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "libs/placement/placement.h"

namespace atelier {

// By site, the domain that it lies in: numbers from 0.
std::vector<int> DomainsOf(const std::vector<PlacementSite>& sites, FailureDomain apart);
int CountDomains(const std::vector<int>& domains);

// How many copies each unit of a layer gets.
using CopyCounts = std::vector<std::vector<int>>;  // [layer][unit]

// A placement while it is made. Every copy in it obeys the domains and the memory. Borrows all that
// it is made of.
class PlacementState {
 public:
  PlacementState(const PlacementProblem& problem, const std::vector<int>& domains,
                 const CopyCounts& counts);

  const LayerHolders& layer(int layer) const { return holders_[static_cast<size_t>(layer)]; }
  const std::vector<int>& holders(int layer, int unit) const {
    return holders_[static_cast<size_t>(layer)][static_cast<size_t>(unit)];
  }
  Holders TakeHolders() { return std::move(holders_); }

  int num_sites() const { return static_cast<int>(used_.size()); }
  int num_layers() const { return static_cast<int>(holders_.size()); }
  int num_units(int layer) const { return static_cast<int>(this->layer(layer).size()); }
  int64_t bytes(int layer, int unit) const { return Unit(layer, unit).bytes; }
  int64_t used(int site) const { return used_[static_cast<size_t>(site)]; }
  int64_t room(int site) const {
    return problem_.sites[static_cast<size_t>(site)].memory_bytes - used(site);
  }
  int count(int layer, int unit) const {
    return counts_[static_cast<size_t>(layer)][static_cast<size_t>(unit)];
  }
  bool complete(int layer, int unit) const {
    return static_cast<int>(holders(layer, unit).size()) == count(layer, unit);
  }
  // Of each copy, once there are as many as there shall be.
  double share(int layer, int unit) const { return Unit(layer, unit).load / count(layer, unit); }
  double load(int layer, int site) const {
    return loads_[static_cast<size_t>(layer)][static_cast<size_t>(site)];
  }
  int Busiest(int layer) const;
  double MaxLoad(int layer) const { return load(layer, Busiest(layer)); }
  // No placement of the layer has a lower MaxLoad.
  double LowerBound(int layer) const;

  bool Holds(int layer, int unit, int site) const;
  // No copy lies in the site's domain, but for one on `leaving`.
  bool DomainFree(int layer, int unit, int site, int leaving = -1) const;
  bool CanAdd(int layer, int unit, int site) const {
    return room(site) >= bytes(layer, unit) && DomainFree(layer, unit, site);
  }
  bool CanMove(int layer, int unit, int from, int to) const {
    return room(to) >= bytes(layer, unit) && DomainFree(layer, unit, to, from);
  }
  // `a` is on site_a and goes to site_b, `b` the other way.
  bool CanSwap(int layer, int a, int site_a, int b, int site_b) const;
  void Add(int layer, int unit, int site);
  void Remove(int layer, int unit, int site);
  void Clear(int layer);

 private:
  const PlacementUnit& Unit(int layer, int unit) const {
    return problem_.layers[static_cast<size_t>(layer)][static_cast<size_t>(unit)];
  }

  const PlacementProblem& problem_;
  const std::vector<int>& domains_;
  const CopyCounts& counts_;
  Holders holders_;
  std::vector<int64_t> used_;               // [site]
  std::vector<std::vector<double>> loads_;  // [layer][site]
};

// Moves and swaps copies of the layer until its busiest site has at most `goal`, or no single step
// makes it less busy. False when it has more. Prefers steps that move few copies for what they
// gain.
bool Rebalance(PlacementState& state, int layer, double goal);

}  // namespace atelier
