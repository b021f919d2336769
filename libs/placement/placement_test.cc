#include "libs/placement/placement.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/placement/eplb.h"
#include "libs/placement/placement_quality.h"
#include "libs/placement/placement_state.h"
#include "libs/testing/status_matchers.h"

namespace atelier {
namespace {

using ::atelier::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  // From 0 to below `end`; the same on every platform.
  int Below(int end) { return static_cast<int>(engine_() % static_cast<uint32_t>(end)); }
  int Between(int low, int high) { return low + Below(high - low + 1); }
  double Real() { return static_cast<double>(engine_()) / 4294967296.0; }
  // Loads rank^-exponent in random order.
  std::vector<double> Zipf(int count, double exponent) {
    std::vector<double> loads;
    for (int rank = 1; rank <= count; ++rank) loads.push_back(std::pow(rank, -exponent));
    for (int i = count - 1; i > 0; --i)
      std::swap(loads[static_cast<size_t>(i)], loads[static_cast<size_t>(Below(i + 1))]);
    return loads;
  }

 private:
  std::mt19937 engine_;
};

std::vector<PlacementSite> Workers(int count, int64_t memory_bytes) {
  std::vector<PlacementSite> sites;
  for (int i = 0; i < count; ++i) {
    sites.push_back({absl::StrCat("w", i), absl::StrCat("h", i), 0, memory_bytes});
  }
  return sites;
}

std::vector<PlacementUnit> Units(const std::vector<double>& loads, int64_t bytes) {
  std::vector<PlacementUnit> units;
  for (const double load : loads) units.push_back({load, bytes});
  return units;
}

PlacementProblem Uniform(int workers, int64_t memory_bytes, int layers, int units) {
  PlacementProblem problem;
  problem.sites = Workers(workers, memory_bytes);
  problem.layers.assign(static_cast<size_t>(layers),
                        Units(std::vector<double>(static_cast<size_t>(units), 1), 1));
  return problem;
}

// Every constraint that PlanPlacement promises.
void ExpectKept(const PlacementProblem& problem, const PlacementPlan& plan) {
  ASSERT_EQ(plan.holders.size(), problem.layers.size());
  std::vector<int64_t> used(problem.sites.size());
  const std::vector<int> domains = DomainsOf(problem.sites, plan.apart);
  for (size_t layer = 0; layer < plan.holders.size(); ++layer) {
    ASSERT_EQ(plan.holders[layer].size(), problem.layers[layer].size());
    for (size_t unit = 0; unit < plan.holders[layer].size(); ++unit) {
      const std::vector<int>& held = plan.holders[layer][unit];
      EXPECT_GE(static_cast<int>(held.size()), plan.copies);
      EXPECT_TRUE(std::is_sorted(held.begin(), held.end()));
      std::set<int> in_domains;
      for (const int site : held) {
        in_domains.insert(domains[static_cast<size_t>(site)]);
        used[static_cast<size_t>(site)] += problem.layers[layer][unit].bytes;
      }
      EXPECT_EQ(in_domains.size(), held.size()) << "two copies in one domain";
    }
  }
  for (size_t site = 0; site < used.size(); ++site) {
    EXPECT_LE(used[site], problem.sites[site].memory_bytes) << "worker " << site;
  }
}

TEST(Placement, PutsCopiesOnDifferentHostsEvenly) {
  const PlacementProblem problem = Uniform(4, 1000, 3, 8);
  ATELIER_ASSERT_OK_AND_ASSIGN(const PlacementPlan plan, PlanPlacement(problem));
  ExpectKept(problem, plan);
  EXPECT_EQ(plan.copies, 2);
  EXPECT_EQ(plan.apart, FailureDomain::kHost);
  const PlacementQuality quality = MeasurePlacement(problem, plan.holders);
  EXPECT_DOUBLE_EQ(quality.balance.worst, 1);
  EXPECT_THAT(quality.site_bytes, ElementsAre(12, 12, 12, 12));
  EXPECT_EQ(quality.moved_bytes, 48);
}

TEST(Placement, TakesTheWidestDomainThatCanBeKept) {
  PlacementProblem problem = Uniform(4, 1000, 1, 4);
  for (PlacementSite& site : problem.sites) site.host = "h";
  ATELIER_ASSERT_OK_AND_ASSIGN(PlacementPlan plan, PlanPlacement(problem));
  EXPECT_EQ(plan.apart, FailureDomain::kWorker);
  problem.sites[2].numa_node = problem.sites[3].numa_node = 1;
  ATELIER_ASSERT_OK_AND_ASSIGN(plan, PlanPlacement(problem));
  EXPECT_EQ(plan.apart, FailureDomain::kNumaNode);
  ExpectKept(problem, plan);
  problem.sites[3].host = "other";
  ATELIER_ASSERT_OK_AND_ASSIGN(plan, PlanPlacement(problem));
  EXPECT_EQ(plan.apart, FailureDomain::kHost);
  ExpectKept(problem, plan);
  // That host cannot hold a copy of everything any more.
  problem.sites[3].memory_bytes = 3;
  ATELIER_ASSERT_OK_AND_ASSIGN(plan, PlanPlacement(problem));
  EXPECT_EQ(plan.apart, FailureDomain::kNumaNode);
  ExpectKept(problem, plan);
  problem.apart = FailureDomain::kHost;
  EXPECT_THAT(PlanPlacement(problem),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("1 bytes are missing")));
}

TEST(Placement, ASingleWorkerHoldsOneCopy) {
  const PlacementProblem problem = Uniform(1, 8, 2, 4);
  ATELIER_ASSERT_OK_AND_ASSIGN(const PlacementPlan plan, PlanPlacement(problem));
  ExpectKept(problem, plan);
  EXPECT_EQ(plan.copies, 1);
  EXPECT_EQ(MeasurePlacement(problem, plan.holders).losses[0].uncovered, 8);
}

TEST(Placement, SaysWhatIsMissing) {
  PlacementProblem problem = Uniform(3, 10, 4, 4);
  EXPECT_THAT(PlanPlacement(problem),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("2 copies of every expert, no two in one worker"),
                             HasSubstr("take 32 bytes"), HasSubstr("can hold 30"),
                             HasSubstr("2 bytes are missing"))));
  // More than one copy of everything on one worker helps nobody.
  problem.sites = Workers(2, 15);
  problem.sites[0].memory_bytes = 1000;
  EXPECT_THAT(PlanPlacement(problem), StatusIs(absl::StatusCode::kResourceExhausted,
                                               AllOf(HasSubstr("no worker more than one copy"),
                                                     HasSubstr("1 bytes are missing"))));
  problem.copies = 3;
  EXPECT_THAT(PlanPlacement(problem),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("only 2 workers")));
  problem.copies = 1;
  ATELIER_EXPECT_OK(PlanPlacement(problem));
}

TEST(Placement, SaysWhatDoesNotFitAsAWhole) {
  PlacementProblem problem;
  problem.sites = Workers(2, 15);
  problem.layers = {Units({1, 1, 1}, 10)};
  problem.copies = 1;
  EXPECT_THAT(PlanPlacement(problem), StatusIs(absl::StatusCode::kResourceExhausted,
                                               AllOf(HasSubstr("leave 10 bytes without a place"),
                                                     HasSubstr("smaller parts"))));
}

TEST(Placement, ExtraCopiesGoToTheHottestAsFarAsMemoryReaches) {
  PlacementProblem problem;
  problem.sites = Workers(3, 100);
  problem.layers = {Units({1, 9, 1, 5}, 10)};
  problem.extra_copies = 2;
  ATELIER_ASSERT_OK_AND_ASSIGN(PlacementPlan plan, PlanPlacement(problem));
  ExpectKept(problem, plan);
  EXPECT_THAT(plan.holders[0], ElementsAre(::testing::SizeIs(2), ::testing::SizeIs(3),
                                           ::testing::SizeIs(2), ::testing::SizeIs(3)));
  problem.sites = Workers(3, 30);
  ATELIER_ASSERT_OK_AND_ASSIGN(plan, PlanPlacement(problem));
  ExpectKept(problem, plan);
  EXPECT_THAT(plan.holders[0][1], ::testing::SizeIs(3));
}

TEST(Placement, SmallWorkersTakeTheirPartOfEveryLayer) {
  PlacementProblem problem = Uniform(4, 300, 50, 8);
  problem.sites[2].memory_bytes = problem.sites[3].memory_bytes = 100;
  ATELIER_ASSERT_OK_AND_ASSIGN(const PlacementPlan plan, PlanPlacement(problem));
  ExpectKept(problem, plan);
  // Six units each on the large ones, two on the small ones; not four until the small ones are
  // full.
  EXPECT_DOUBLE_EQ(MeasurePlacement(problem, plan.holders).balance.worst, 4.0 / 6);
}

TEST(Placement, WhatIsWellPlacedStays) {
  PlacementProblem problem = Uniform(4, 1000, 3, 8);
  ATELIER_ASSERT_OK_AND_ASSIGN(PlacementPlan plan, PlanPlacement(problem));
  problem.current = plan.holders;
  std::rotate(problem.current[1].begin(), problem.current[1].begin() + 3, problem.current[1].end());
  ATELIER_ASSERT_OK_AND_ASSIGN(plan, PlanPlacement(problem));
  EXPECT_EQ(plan.holders, problem.current);
  EXPECT_EQ(MeasurePlacement(problem, plan.holders).moved_bytes, 0);
}

TEST(Placement, ALostWorkersCopiesAreMadeAgainAndNothingElseMoves) {
  PlacementProblem problem = Uniform(4, 1000, 3, 12);
  ATELIER_ASSERT_OK_AND_ASSIGN(PlacementPlan plan, PlanPlacement(problem));
  const PlacementQuality before = MeasurePlacement(problem, plan.holders);
  problem.current = plan.holders;
  for (LayerHolders& layer : problem.current) {
    for (std::vector<int>& held : layer) {
      held.erase(std::remove(held.begin(), held.end(), 3), held.end());
    }
  }
  problem.sites.pop_back();
  problem.tolerance = 1;  // the load may be uneven
  ATELIER_ASSERT_OK_AND_ASSIGN(plan, PlanPlacement(problem));
  ExpectKept(problem, plan);
  EXPECT_EQ(MeasurePlacement(problem, plan.holders).moved_bytes, before.site_bytes[3]);
  problem.tolerance = 0.02;
  ATELIER_ASSERT_OK_AND_ASSIGN(plan, PlanPlacement(problem));
  ExpectKept(problem, plan);
  const PlacementQuality even = MeasurePlacement(problem, plan.holders);
  EXPECT_GE(even.balance.worst, 0.98);
  // What worker 3 held cannot all go to one worker: in each layer, two others change places.
  EXPECT_LE(even.moved_bytes, before.site_bytes[3] + 3 * 2);
}

struct BadProblem {
  std::function<void(PlacementProblem&)> set;
  std::string part;
};

TEST(Placement, EveryBadFieldIsNamed) {
  using P = PlacementProblem;
  const std::vector<BadProblem> bad = {
      {[](P& p) { p.sites.clear(); }, "sites: there is no worker"},
      {[](P& p) { p.sites[1].name = ""; }, "has no name"},
      {[](P& p) { p.sites[1].name = "w0"; }, "two workers are named \"w0\""},
      {[](P& p) { p.sites[1].memory_bytes = -1; }, "memory_bytes=-1"},
      {[](P& p) { p.sites[0].memory_bytes = p.sites[1].memory_bytes = INT64_MAX; },
       "exceed 64 bits"},
      {[](P& p) { p.layers.clear(); }, "layers: there is nothing"},
      {[](P& p) { p.layers[1].clear(); }, "layers[1]: has no units"},
      {[](P& p) { p.layers[1][2].load = -1; }, "layers[1][2].load=-1"},
      {[](P& p) { p.layers[1][2].load = std::numeric_limits<double>::quiet_NaN(); }, "load=nan"},
      {[](P& p) { p.layers[1][2].bytes = 0; }, "layers[1][2].bytes=0"},
      {[](P& p) { p.layers[0][0].bytes = INT64_MAX / 2; }, "fit 64 bits"},
      {[](P& p) { p.copies = -1; }, "copies=-1"},
      {[](P& p) { p.extra_copies = -1; }, "extra_copies=-1"},
      {[](P& p) { p.tolerance = -0.5; }, "tolerance=-0.5"},
      {[](P& p) { p.current.resize(1); }, "current: has 1 layers, not 2"},
      {[](P& p) { p.current.resize(2); }, "current[0]: has 0 units, not 3"},
      {[](P& p) {
         p.current = {{{0}, {4}, {1}}, {{0}, {1}, {2}}};
       },
       "there is no worker 4"},
  };
  for (const BadProblem& one : bad) {
    PlacementProblem problem = Uniform(4, 100, 2, 3);
    one.set(problem);
    EXPECT_THAT(PlanPlacement(problem),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(one.part)));
  }
}

// Random workers on random hosts with random memory, random loads: whatever fits is placed with
// every constraint kept; what does not is refused, as the units count says.
TEST(PlacementProperty, UnitsOfOneSizeArePlacedExactlyWhenTheyFit) {
  int placed = 0, refused = 0;
  for (uint32_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Random random(seed);
    PlacementProblem problem;
    const int workers = random.Between(1, 7), layers = random.Between(1, 5);
    const int units = random.Between(1, 12), bytes = random.Between(1, 9);
    problem.copies = random.Between(1, 3);
    problem.apart = static_cast<FailureDomain>(random.Below(3));
    const int needed = problem.copies * layers * units * bytes;
    for (int i = 0; i < workers; ++i) {
      problem.sites.push_back({absl::StrCat("w", i), absl::StrCat("h", random.Below(4)),
                               random.Below(2), random.Below(3 * needed / workers + 2)});
    }
    for (int layer = 0; layer < layers; ++layer) {
      problem.layers.push_back(Units(random.Zipf(units, random.Real() * 1.5), bytes));
    }
    // A copy of each unit goes to as many domains as there are copies: that is possible exactly
    // when the domains' room, each counted up to one copy of everything, is enough.
    const std::vector<int> domains = DomainsOf(problem.sites, *problem.apart);
    std::vector<int64_t> fits(static_cast<size_t>(CountDomains(domains)));
    for (size_t i = 0; i < domains.size(); ++i) {
      fits[static_cast<size_t>(domains[i])] += problem.sites[i].memory_bytes / bytes;
    }
    int64_t room = 0;
    for (const int64_t count : fits) room += std::min<int64_t>(count, layers * units);
    const bool possible = room >= problem.copies * layers * units;
    const absl::StatusOr<PlacementPlan> plan = PlanPlacement(problem);
    EXPECT_EQ(plan.ok(), possible) << plan.status();
    if (plan.ok()) ExpectKept(problem, *plan);
    if (!plan.ok() && problem.copies <= CountDomains(domains)) {
      EXPECT_THAT(plan, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("bytes")));
    }
    ++(plan.ok() ? placed : refused);
  }
  EXPECT_GT(placed, 50);
  EXPECT_GT(refused, 50);
}

// Also units of different sizes, and a current placement that is anything: a worker gone, copies
// too many or too few.
TEST(PlacementProperty, AnyCurrentPlacementIsMendedWithinItsTolerance) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Random random(seed);
    const int workers = random.Between(2, 6), units = random.Between(4, 24);
    PlacementProblem problem = Uniform(workers, 0, random.Between(1, 4), units);
    problem.copies = 2;
    int64_t once = 0;
    for (std::vector<PlacementUnit>& layer : problem.layers) {
      const int64_t bytes = random.Between(3, 9);
      layer = Units(random.Zipf(units, random.Real()), bytes);
      once += bytes * units;
    }
    for (PlacementSite& site : problem.sites) {
      site.memory_bytes = once * 2 / workers + random.Between(20, 60);
    }
    for (size_t layer = 0; layer < problem.layers.size(); ++layer) {
      problem.current.emplace_back();
      for (int unit = 0; unit < units; ++unit) {
        std::vector<int> held;
        for (int site = 0; site < workers; ++site) {
          if (random.Below(3) == 0) held.push_back(site);
        }
        problem.current.back().push_back(held);
      }
    }
    ATELIER_ASSERT_OK_AND_ASSIGN(const PlacementPlan plan, PlanPlacement(problem));
    ExpectKept(problem, plan);
    PlacementProblem fresh = problem;
    fresh.current.clear();
    ATELIER_ASSERT_OK_AND_ASSIGN(const PlacementPlan anew, PlanPlacement(fresh));
    const PlacementQuality kept = MeasurePlacement(problem, plan.holders);
    EXPECT_GE(kept.balance.worst * (1 + problem.tolerance) + 1e-9,
              MeasurePlacement(problem, anew.holders).balance.worst);
    EXPECT_LE(kept.moved_bytes, MeasurePlacement(problem, anew.holders).moved_bytes);
    ATELIER_ASSERT_OK_AND_ASSIGN(const PlacementPlan again, PlanPlacement(problem));
    EXPECT_EQ(again.holders, plan.holders);
  }
}

// The experiment of EPLB against copies that are kept apart, with the same memory for both.
struct Experiment {
  int experts;
  int workers;
  double zipf;
  double eplb_lost;  // experts without a copy after the loss of one worker, on average
};

class PlacementAgainstEplb : public ::testing::TestWithParam<Experiment> {};

TEST_P(PlacementAgainstEplb, TwoCopiesApartLoseNoExpertWithAWorkerAndBalanceAsWell) {
  const auto [experts, workers, zipf, eplb_lost] = GetParam();
  double eplb = 0;
  constexpr int kSeeds = 20;
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Random random(seed);
    const std::vector<double> loads = random.Zipf(experts, zipf);
    PlacementProblem problem;
    problem.sites = Workers(workers, 2 * experts / workers);
    problem.layers = {Units(loads, 1)};
    ATELIER_ASSERT_OK_AND_ASSIGN(const PlacementPlan plan, PlanPlacement(problem));
    ExpectKept(problem, plan);
    const PlacementQuality ours = MeasurePlacement(problem, plan.holders);
    EXPECT_EQ(ours.losses[0].uncovered, 0);
    EXPECT_GE(ours.balance.worst, 0.95);
    const EplbShape shape{2 * experts, 1, 1, workers};
    ATELIER_ASSERT_OK_AND_ASSIGN(const EplbPlan other, BalanceByEplb({loads}, shape));
    eplb += MeasurePlacement(problem, HoldersOf(other, shape)).losses[0].mean_uncovered;
    EXPECT_GT(WastedCopies(other, shape), 0);
  }
  EXPECT_NEAR(eplb / kSeeds, eplb_lost, 0.15 * eplb_lost);
}

INSTANTIATE_TEST_SUITE_P(Zipf, PlacementAgainstEplb,
                         ::testing::Values(Experiment{256, 4, 1.0, 49.0},
                                           Experiment{256, 8, 1.0, 24.9},
                                           Experiment{256, 8, 0.5, 11.5},
                                           Experiment{128, 4, 1.0, 24.5}));

// As large as models are: loads that drift by a tenth cost few moves.
TEST(Placement, DriftOfLoadsMovesLittle) {
  Random random(7);
  PlacementProblem problem;
  problem.sites = Workers(4, 58 * 256);
  for (int layer = 0; layer < 58; ++layer)
    problem.layers.push_back(Units(random.Zipf(256, 1.0), 1));
  ATELIER_ASSERT_OK_AND_ASSIGN(PlacementPlan plan, PlanPlacement(problem));
  EXPECT_GE(MeasurePlacement(problem, plan.holders).balance.worst, 0.95);
  problem.current = plan.holders;
  for (std::vector<PlacementUnit>& layer : problem.layers) {
    for (PlacementUnit& unit : layer) unit.load *= 0.9 + 0.2 * random.Real();
  }
  ATELIER_ASSERT_OK_AND_ASSIGN(plan, PlanPlacement(problem));
  ExpectKept(problem, plan);
  const PlacementQuality quality = MeasurePlacement(problem, plan.holders);
  EXPECT_GE(quality.balance.worst, 0.95);
  EXPECT_LE(quality.moved_bytes, 58 * 512 / 4);
  ::testing::Test::RecordProperty("moved_of_29696", std::to_string(quality.moved_bytes));
}

}  // namespace
}  // namespace atelier
