#include "libs/placement/placement.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/base/checked_math.h"
#include "libs/base/quoted.h"
#include "libs/base/status_macros.h"
#include "libs/placement/keep_current.h"
#include "libs/placement/place_anew.h"
#include "libs/placement/placement_state.h"

namespace atelier {
namespace {

template <typename... Args>
absl::Status Invalid(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

absl::Status CheckSites(const std::vector<PlacementSite>& sites) {
  if (sites.empty()) return Invalid("sites: there is no worker to place anything on");
  std::set<std::string> names;
  int64_t sum = 0;
  for (const PlacementSite& site : sites) {
    if (site.name.empty()) return Invalid("sites: a worker has no name");
    if (!names.insert(site.name).second) {
      return Invalid("sites: two workers are named ", Quoted(site.name));
    }
    if (site.memory_bytes < 0) {
      return Invalid("worker ", Quoted(site.name), ": memory_bytes=", site.memory_bytes,
                     " must not be negative");
    }
    const std::optional<int64_t> more = CheckedAdd(sum, site.memory_bytes);
    if (!more) return Invalid("sites: the workers' memory_bytes exceed 64 bits together");
    sum = *more;
  }
  return absl::OkStatus();
}

// Also that whatever is computed of the bytes fits 64 bits.
absl::Status CheckUnits(const PlacementProblem& problem) {
  if (problem.layers.empty()) return Invalid("layers: there is nothing to place");
  int64_t sum = 0;
  for (size_t layer = 0; layer < problem.layers.size(); ++layer) {
    if (problem.layers[layer].empty()) return Invalid("layers[", layer, "]: has no units");
    for (size_t u = 0; u < problem.layers[layer].size(); ++u) {
      const PlacementUnit& unit = problem.layers[layer][u];
      if (!std::isfinite(unit.load) || unit.load < 0) {
        return Invalid("layers[", layer, "][", u, "].load=", unit.load,
                       " must be a number of at least 0");
      }
      const auto copies = static_cast<int64_t>(problem.sites.size());
      const std::optional<int64_t> all = CheckedMul(unit.bytes, copies);
      const std::optional<int64_t> more = all ? CheckedAdd(sum, *all) : std::nullopt;
      if (unit.bytes < 1 || !more) {
        return Invalid("layers[", layer, "][", u, "].bytes=", unit.bytes,
                       " must be at least 1, and all copies of all units fit 64 bits");
      }
      sum = *more;
    }
  }
  return absl::OkStatus();
}

absl::Status CheckCurrent(const PlacementProblem& problem) {
  if (problem.current.empty()) return absl::OkStatus();
  if (problem.current.size() != problem.layers.size()) {
    return Invalid("current: has ", problem.current.size(), " layers, not ", problem.layers.size());
  }
  for (size_t layer = 0; layer < problem.layers.size(); ++layer) {
    const LayerHolders& held = problem.current[layer];
    if (held.size() != problem.layers[layer].size()) {
      return Invalid("current[", layer, "]: has ", held.size(), " units, not ",
                     problem.layers[layer].size());
    }
    for (size_t unit = 0; unit < held.size(); ++unit) {
      for (const int site : held[unit]) {
        if (site >= 0 && static_cast<size_t>(site) < problem.sites.size()) continue;
        return Invalid("current[", layer, "][", unit, "]: there is no worker ", site);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Check(const PlacementProblem& problem) {
  ATELIER_RETURN_IF_ERROR(CheckSites(problem.sites));
  ATELIER_RETURN_IF_ERROR(CheckUnits(problem));
  if (problem.copies < 0) return Invalid("copies=", problem.copies, " must not be negative");
  if (problem.extra_copies < 0) {
    return Invalid("extra_copies=", problem.extra_copies, " must not be negative");
  }
  if (!std::isfinite(problem.tolerance) || problem.tolerance < 0) {
    return Invalid("tolerance=", problem.tolerance, " must be a number of at least 0");
  }
  return CheckCurrent(problem);
}

// `copies` of each unit and `extra` more in each layer: one more for whose copies are read most.
CopyCounts CountCopies(const PlacementProblem& problem, int copies, int extra, int max_copies) {
  CopyCounts counts;
  for (const std::vector<PlacementUnit>& units : problem.layers) {
    std::vector<int> of_layer(units.size(), copies);
    for (int more = 0; more < extra; ++more) {
      int hottest = -1;
      const auto share = [&](size_t unit) { return units[unit].load / of_layer[unit]; };
      for (size_t unit = 0; unit < units.size(); ++unit) {
        const bool may = of_layer[unit] < max_copies;
        if (may && (hottest < 0 || share(unit) > share(static_cast<size_t>(hottest)))) {
          hottest = static_cast<int>(unit);
        }
      }
      if (hottest < 0) break;
      ++of_layer[static_cast<size_t>(hottest)];
    }
    counts.push_back(std::move(of_layer));
  }
  return counts;
}

struct Bytes {
  int64_t once = 0;    // of one copy of everything
  int64_t needed = 0;  // of all copies
};

Bytes CountBytes(const PlacementProblem& problem, const CopyCounts& counts) {
  Bytes bytes;
  for (size_t layer = 0; layer < problem.layers.size(); ++layer) {
    for (size_t unit = 0; unit < problem.layers[layer].size(); ++unit) {
      bytes.once += problem.layers[layer][unit].bytes;
      bytes.needed += problem.layers[layer][unit].bytes * counts[layer][unit];
    }
  }
  return bytes;
}

// What the domains can hold when none may hold anything twice.
int64_t UsableBytes(const PlacementProblem& problem, const std::vector<int>& domains,
                    int64_t once) {
  std::vector<int64_t> of_domain(static_cast<size_t>(CountDomains(domains)), 0);
  for (size_t site = 0; site < domains.size(); ++site) {
    of_domain[static_cast<size_t>(domains[site])] += problem.sites[site].memory_bytes;
  }
  int64_t usable = 0;
  for (const int64_t bytes : of_domain) usable += std::min(bytes, once);
  return usable;
}

std::string CopiesText(int copies, FailureDomain apart) {
  if (copies == 1) return "one copy of every expert";
  return absl::StrCat(copies, " copies of every expert, no two in one ", FailureDomainName(apart));
}

// Of one kind of domain and one number of copies.
absl::StatusOr<Holders> Place(const PlacementProblem& problem, const std::vector<int>& domains,
                              const CopyCounts& counts, const PlacementPlan& meant) {
  const Bytes bytes = CountBytes(problem, counts);
  const int64_t usable = UsableBytes(problem, domains, bytes.once);
  const std::string what = CopiesText(meant.copies, meant.apart);
  if (usable < bytes.needed) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "memory: ", what, ", take ", bytes.needed, " bytes, and the workers can hold ", usable,
        meant.copies > 1 ? absl::StrCat(" of them (no ", FailureDomainName(meant.apart),
                                        " more than one copy, ", bytes.once, " bytes)")
                         : std::string(),
        ": ", bytes.needed - usable, " bytes are missing"));
  }
  PlacementState anew(problem, domains, counts);
  const int64_t missing = PlaceAnew(problem, domains, anew);
  std::optional<Holders> kept;
  if (!problem.current.empty()) {
    PlacementState state(problem, domains, counts);
    kept = KeepCurrent(problem, missing == 0 ? &anew : nullptr, state);
  }
  if (kept.has_value()) return *std::move(kept);
  if (missing == 0) return anew.TakeHolders();
  return absl::ResourceExhaustedError(absl::StrCat(
      "memory: ", what, ", leave ", missing,
      " bytes without a place: no worker that may hold them has room for a whole part; give the "
      "workers more memory, or place smaller parts"));
}

absl::StatusOr<PlacementPlan> PlanApart(const PlacementProblem& problem, FailureDomain apart) {
  const std::vector<int> domains = DomainsOf(problem.sites, apart);
  const int num_domains = CountDomains(domains);
  PlacementPlan plan;
  plan.copies = problem.copies > 0 ? problem.copies : (problem.sites.size() > 1 ? 2 : 1);
  plan.apart = apart;
  if (plan.copies > num_domains) {
    return absl::FailedPreconditionError(absl::StrCat(
        CopiesText(plan.copies, apart), ": there ", num_domains == 1 ? "is" : "are", " only ",
        num_domains, " ", FailureDomainName(apart), num_domains == 1 ? "" : "s"));
  }
  for (int extra = problem.extra_copies;; extra /= 2) {
    const CopyCounts counts = CountCopies(problem, plan.copies, extra, num_domains);
    absl::StatusOr<Holders> holders = Place(problem, domains, counts, plan);
    if (holders.ok()) plan.holders = *std::move(holders);
    if (holders.ok()) return plan;
    if (extra == 0) return holders.status();
  }
}

}  // namespace

absl::string_view FailureDomainName(FailureDomain domain) {
  switch (domain) {
    case FailureDomain::kWorker:
      return "worker";
    case FailureDomain::kNumaNode:
      return "NUMA node";
    case FailureDomain::kHost:
      return "host";
  }
  return "";
}

absl::StatusOr<PlacementPlan> PlanPlacement(const PlacementProblem& problem) {
  ATELIER_RETURN_IF_ERROR(Check(problem));
  if (problem.apart.has_value()) return PlanApart(problem, *problem.apart);
  for (const FailureDomain apart : {FailureDomain::kHost, FailureDomain::kNumaNode}) {
    absl::StatusOr<PlacementPlan> plan = PlanApart(problem, apart);
    if (plan.ok()) return plan;
  }
  return PlanApart(problem, FailureDomain::kWorker);
}

}  // namespace atelier
