#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "libs/base/flag_table.h"
#include "nlohmann/json.hpp"
#include "tools/atelier/placement_plan.h"

namespace atelier {
namespace {

using nlohmann::json;

// Sums that a worker sends back for each row of a layer, at most.
size_t MostSums(const PlannedPlacement& planned) {
  size_t most = 0;
  for (const LayerHolders& layer : planned.plan.holders) {
    std::vector<size_t> held(planned.file.workers.size());
    for (const std::vector<int>& holders : layer) {
      for (const int worker : holders) ++held[static_cast<size_t>(worker)];
    }
    most = std::max(most, *std::max_element(held.begin(), held.end()));
  }
  return most;
}

std::string CopiesText(const PlacementPlan& plan) {
  if (plan.copies == 1) return "one copy of each";
  return absl::StrCat(plan.copies, " copies of each, no two in one ",
                      FailureDomainName(plan.apart));
}

std::string BalanceText(const Balancedness& balance) {
  return absl::StrFormat("%.3f (worst layer %.3f)", balance.mean, balance.worst);
}

double Share(const std::vector<double>& loads, size_t worker) {
  double sum = 0;
  for (const double load : loads) sum += load;
  return sum > 0 ? 100 * loads[worker] / sum : 0;
}

void AppendWorkers(std::string& text, const PlannedPlacement& planned) {
  size_t width = 6;
  for (const PlacedWorker& worker : planned.file.workers) {
    width = std::max(width, worker.name.size());
  }
  absl::StrAppendFormat(&text, "\n%-*s  %10s  %10s  %6s  %s\n", width, "worker", "memory", "holds",
                        "load", "host/node");
  for (size_t w = 0; w < planned.file.workers.size(); ++w) {
    const PlacedWorker& worker = planned.file.workers[w];
    absl::StrAppendFormat(&text, "%-*s  %10s  %10s  %5.1f%%  %s/%d\n", width, worker.name,
                          FormatBytes(worker.memory_bytes),
                          FormatBytes(planned.quality.site_bytes[w]),
                          Share(planned.quality.site_load, w), worker.host, worker.numa_node);
  }
}

// "0 of 184 parts", "12 of 184 parts (e.g. h1)".
std::string UncoveredText(const LossQuality& loss, size_t of, absl::string_view what) {
  std::string text = absl::StrCat(loss.uncovered, " of ", of, " ", what);
  if (loss.uncovered > 0) absl::StrAppend(&text, " (", loss.worst, ")");
  return text;
}

void AppendLosses(std::string& text, const PlannedPlacement& planned) {
  const size_t parts = planned.layers.size() * planned.units.size();
  absl::StrAppend(&text, "\nwithout a copy after the loss of any\n");
  for (const LossQuality& loss : planned.quality.losses) {
    absl::StrAppendFormat(&text, "  %-9s (of %d): %s", FailureDomainName(loss.domain), loss.domains,
                          UncoveredText(loss, parts, "parts"));
    if (loss.uncovered == 0) {
      absl::StrAppend(&text, "; balancedness then ", BalanceText(loss.balance));
    }
    absl::StrAppend(&text, "\n");
  }
}

void AppendEplb(std::string& text, const PlannedPlacement& planned) {
  const EplbComparison& eplb = planned.eplb;
  const auto experts = static_cast<size_t>(planned.file.num_experts) * planned.layers.size();
  absl::StrAppend(&text, "\nEPLB with ", eplb.slots,
                  " slots a layer, for comparison: balancedness ", BalanceText(eplb.balance),
                  ",\n  ", eplb.wasted_copies,
                  " copies on a worker that has another of the same expert;\n  after the loss of a "
                  "worker ",
                  UncoveredText(eplb.losses[0], experts, "experts"), " have no copy\n");
}

json BalanceJson(const Balancedness& balance) {
  return {{"mean", balance.mean}, {"worst", balance.worst}};
}

json LossesJson(const std::vector<LossQuality>& losses) {
  json list = json::array();
  for (const LossQuality& loss : losses) {
    list.push_back({{"domain", FailureDomainName(loss.domain)},
                    {"domains", loss.domains},
                    {"uncovered", loss.uncovered},
                    {"mean_uncovered", loss.mean_uncovered},
                    {"worst", loss.worst},
                    {"balancedness", BalanceJson(loss.balance)}});
  }
  return list;
}

}  // namespace

std::string PlacementText(const PlannedPlacement& planned) {
  std::string text;
  absl::StrAppend(&text, planned.layers.size(), " layers of ", planned.file.num_experts,
                  " experts as ", planned.methods, ", ", FormatBytes(planned.once_bytes), "; ",
                  CopiesText(planned.plan), ", ", FormatBytes(planned.all_bytes), "\n",
                  planned.units.size(), planned.units.size() == 1 ? " part" : " parts",
                  " a layer; a worker answers a row with up to ", MostSums(planned), " sums\n");
  AppendWorkers(text, planned);
  absl::StrAppend(&text, "\nbalancedness ", BalanceText(planned.quality.balance),
                  ": mean load of a layer's workers over that of its busiest\n");
  AppendLosses(text, planned);
  absl::StrAppend(&text, "\nmoved: ", FormatBytes(planned.quality.moved_bytes), " of ",
                  FormatBytes(planned.all_bytes), "\n");
  AppendEplb(text, planned);
  return text;
}

std::string PlacementJson(const PlannedPlacement& planned) {
  json workers = json::array();
  for (size_t w = 0; w < planned.file.workers.size(); ++w) {
    const PlacedWorker& worker = planned.file.workers[w];
    workers.push_back({{"name", worker.name},
                       {"host", worker.host},
                       {"numa_node", worker.numa_node},
                       {"memory_bytes", worker.memory_bytes},
                       {"bytes", planned.quality.site_bytes[w]},
                       {"load", Share(planned.quality.site_load, w) / 100}});
  }
  const json document = {{"model_digest", planned.file.model_digest},
                         {"methods", planned.methods},
                         {"layers", planned.layers},
                         {"parts_per_layer", planned.units.size()},
                         {"sums_per_row", MostSums(planned)},
                         {"copies", planned.plan.copies},
                         {"apart", FailureDomainName(planned.plan.apart)},
                         {"bytes_of_one_copy", planned.once_bytes},
                         {"bytes", planned.all_bytes},
                         {"moved_bytes", planned.quality.moved_bytes},
                         {"balancedness", BalanceJson(planned.quality.balance)},
                         {"losses", LossesJson(planned.quality.losses)},
                         {"workers", workers},
                         {"eplb",
                          {{"slots_per_layer", planned.eplb.slots},
                           {"balancedness", BalanceJson(planned.eplb.balance)},
                           {"wasted_copies", planned.eplb.wasted_copies},
                           {"losses", LossesJson(planned.eplb.losses)}}}};
  return document.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace atelier
