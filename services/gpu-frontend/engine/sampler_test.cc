#include "services/gpu-frontend/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atelier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr uint64_t kSeed = 42;

std::vector<float> LogsOf(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

SamplingOptions Options(float temperature) {
  SamplingOptions options;
  options.temperature = temperature;
  return options;
}

std::optional<int32_t> Greedy(const std::vector<float>& logits, SamplingOptions options = {},
                              const TokenHistory& history = {},
                              const std::vector<int32_t>& forbidden = {}) {
  options.temperature = 0;
  Sampler sampler;
  return sampler.Sample({logits, options, history, forbidden, {}});
}

std::map<int32_t, int> Histogram(const std::vector<float>& logits, const SamplingOptions& options,
                                 uint32_t num_draws) {
  Sampler sampler;
  std::map<int32_t, int> counts;
  for (uint32_t i = 0; i < num_draws; ++i) {
    ++counts[sampler.Sample({logits, options, {}, {}, {kSeed, 0, i}}).value()];
  }
  return counts;
}

std::vector<int32_t> Support(const std::vector<float>& logits, const SamplingOptions& options,
                             uint32_t num_draws = 5000) {
  std::vector<int32_t> tokens;
  for (const auto& [token, count] : Histogram(logits, options, num_draws)) tokens.push_back(token);
  return tokens;
}

// Pearson's statistic against `probabilities`; tokens of probability 0 must not occur.
double ChiSquare(const std::map<int32_t, int>& counts, const std::vector<double>& probabilities) {
  double total = 0;
  for (const auto& [token, count] : counts) total += count;
  double chi = 0;
  for (size_t i = 0; i < probabilities.size(); ++i) {
    const auto it = counts.find(static_cast<int32_t>(i));
    const double observed = it == counts.end() ? 0 : it->second;
    const double expected = probabilities[i] * total;
    if (expected == 0) {
      EXPECT_EQ(observed, 0) << "token " << i;
      continue;
    }
    chi += (observed - expected) * (observed - expected) / expected;
  }
  return chi;
}
// Exceeded once in 10,000 by a right sampler; the seed is fixed.
constexpr double kChi3 = 21.11;
constexpr double kChi2 = 18.42;
constexpr double kChi15 = 44.26;

TEST(Sampler, GreedyTakesTheLargestAndOfEqualOnesTheLowestId) {
  EXPECT_EQ(Greedy({1, 3, 2, 3}), 1);
  EXPECT_EQ(Greedy({-5}), 0);
}

TEST(Sampler, NanAndInfinityAreSurvived) {
  EXPECT_EQ(Greedy({kNan, -kInf, -7, kNan}), 2);
  EXPECT_EQ(Greedy({kNan, -kInf, kNan}), std::nullopt);
  EXPECT_EQ(Greedy({1, kInf, 2}), 1);
  for (const float top_p : {1.0f, 0.9f}) {
    SamplingOptions options = Options(1);
    options.top_p = top_p;
    EXPECT_THAT(Support({1, kInf, 2}, options), ElementsAre(1));
    EXPECT_THAT(Support({kNan, 1, -kInf, 1}, options), ElementsAre(1, 3));
  }
}

TEST(Sampler, BiasComesBeforeTheRepetitionPenalty) {
  SamplingOptions options;
  options.logit_bias = {{0, 4.0f}};
  options.repetition_penalty = 2;
  TokenHistory history;
  history.AddPrompt({0});
  // Token 0: (-1 + 4) / 2 = 1.5; the other way round it would be -1 * 2 + 4 = 2.
  EXPECT_EQ(Greedy({-1, 1.75}, options, history), 1);
  EXPECT_EQ(Greedy({-1, 1.25}, options, history), 0);
}

TEST(Sampler, RepetitionPenaltyLowersBothSignsOverPromptAndOutput) {
  SamplingOptions options;
  options.repetition_penalty = 2;
  TokenHistory history;
  history.AddPrompt({0});
  history.AddOutput(1);
  EXPECT_EQ(Greedy({3, 3, 1.6f}, options, history), 2);
  EXPECT_EQ(Greedy({-1, -1, -1.9f}, options, history), 2);
  EXPECT_EQ(Greedy({3, 3, 1.4f}, options, history), 0);
}

TEST(Sampler, FrequencyCountsAndPresenceDoesNotOverTheOutputOnly) {
  TokenHistory history;
  history.AddPrompt({2, 2, 2});
  for (int i = 0; i < 3; ++i) history.AddOutput(0);
  history.AddOutput(1);
  SamplingOptions options;
  options.frequency_penalty = 0.5f;
  EXPECT_EQ(Greedy({5, 4.1f, 3}, options, history), 1);  // 3.5, 3.6
  options.frequency_penalty = 0;
  options.presence_penalty = 0.5f;
  EXPECT_EQ(Greedy({5, 4.1f, 3}, options, history), 0);     // 4.5, 3.6
  EXPECT_EQ(Greedy({5, 4.1f, 4.6f}, options, history), 2);  // the prompt does not count
}

TEST(Sampler, ForbiddenTokensAreNeverChosen) {
  EXPECT_EQ(Greedy({5, 4, 3}, {}, {}, {0, 1}), 2);
  EXPECT_EQ(Greedy({5, 4}, {}, {}, {0, 1}), std::nullopt);
  SamplingOptions options;
  options.logit_bias = {{0, 100.0f}};
  EXPECT_EQ(Greedy({5, 4, 3}, options, {}, {0}), 1);
}

TEST(Sampler, TopKKeepsTheLowestIdsOfEqualOnes) {
  SamplingOptions options = Options(1);
  options.top_k = 3;
  EXPECT_THAT(Support({1, 2, 1, 2, 1}, options), ElementsAre(0, 1, 3));
  options.top_k = 100;
  EXPECT_THAT(Support({1, 2, 1, 2, 1}, options), ElementsAre(0, 1, 2, 3, 4));
  options.top_k = 1;
  EXPECT_THAT(Support({1, 2, 1, 2, 1}, options), ElementsAre(1));
}

TEST(Sampler, TopKOfALargeVocabularyEqualsTheSortedOne) {
  std::mt19937 random(6);
  for (int round = 0; round < 30; ++round) {
    const int k = 2 + round;
    std::vector<float> logits(300);
    // Few values, so that ties decide.
    std::uniform_int_distribution<int> value(0, 40);
    for (float& l : logits) l = static_cast<float>(value(random));
    std::vector<int32_t> top(logits.size());
    std::iota(top.begin(), top.end(), 0);
    std::stable_sort(top.begin(), top.end(), [&](int32_t a, int32_t b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    top.resize(static_cast<size_t>(k));
    std::sort(top.begin(), top.end());
    SamplingOptions options = Options(1000);  // nearly uniform
    options.top_k = k;
    EXPECT_EQ(Support(logits, options, 1000), top) << k;
  }
}

TEST(Sampler, TopPKeepsTheFewestThatReachTheShare) {
  SamplingOptions options = Options(1);
  const std::vector<float> logits = LogsOf({0.1, 0.4, 0.2, 0.3});
  options.top_p = 0.65f;
  EXPECT_THAT(Support(logits, options), ElementsAre(1, 3));
  options.top_p = 0.75f;
  EXPECT_THAT(Support(logits, options), ElementsAre(1, 2, 3));
  options.top_p = 1e-6f;
  EXPECT_THAT(Support(logits, options), ElementsAre(1));
  // Exactly at the edge: four equal halves of powers of two are exact in binary.
  options.top_p = 0.5f;
  EXPECT_THAT(Support({0, 0, 0, 0}, options), ElementsAre(0, 1));
}

TEST(Sampler, TopPIsAShareOfWhatTopKLeft) {
  SamplingOptions options = Options(1);
  options.top_k = 2;
  options.top_p = 0.5f;
  // 0.4 / (0.4 + 0.3) > 0.5, though 0.4 < 0.5.
  EXPECT_THAT(Support(LogsOf({0.1, 0.4, 0.2, 0.3}), options), ElementsAre(1));
}

TEST(Sampler, MinPIsRelativeToTheMostLikely) {
  SamplingOptions options = Options(1);
  options.min_p = 0.5f;
  const std::vector<float> logits = LogsOf({0.1, 0.4, 0.19, 0.31});
  EXPECT_THAT(Support(logits, options), ElementsAre(1, 3));
  options.min_p = 1;
  EXPECT_THAT(Support(logits, options), ElementsAre(1));
  options.min_p = 0.5f;
  options.top_k = 3;
  EXPECT_THAT(Support(logits, options), ElementsAre(1, 3));
  // The temperature comes first: at 2 the ratio 0.19 / 0.4 becomes its square root, 0.69.
  options = Options(2);
  options.min_p = 0.6f;
  EXPECT_THAT(Support(logits, options), ElementsAre(1, 2, 3));
}

TEST(Sampler, NucleusOfAFlatLargeVocabularyEqualsTheSortedOne) {
  constexpr int kVocab = 1000;
  std::mt19937 random(5);
  std::vector<float> logits(kVocab);
  for (float& l : logits) l = std::normal_distribution<float>(0, 0.2f)(random);
  std::vector<int32_t> order(kVocab);
  for (int32_t i = 0; i < kVocab; ++i) order[static_cast<size_t>(i)] = i;
  const auto logit = [&](int32_t i) { return double{logits[static_cast<size_t>(i)]}; };
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logit(a) > logit(b); });
  double total = 0;
  for (const int32_t i : order) total += std::exp(logit(i));
  std::set<int32_t> nucleus;
  double sum = 0;
  for (const int32_t i : order) {
    if (sum >= 0.3 * total) break;
    sum += std::exp(logit(i));
    nucleus.insert(i);
  }
  ASSERT_GT(nucleus.size(), 100u);  // beyond the first sorted run
  SamplingOptions options = Options(1);
  options.top_p = 0.3f;
  const std::map<int32_t, int> counts = Histogram(logits, options, 20000);
  EXPECT_EQ(counts.size(), nucleus.size());
  for (const auto& [token, count] : counts) EXPECT_TRUE(nucleus.contains(token)) << token;
}

TEST(Sampler, FrequenciesFollowTheProbabilities) {
  const std::vector<double> p = {0.5, 0.25, 0.2, 0.05};
  EXPECT_LT(ChiSquare(Histogram(LogsOf(p), Options(1), 20000), p), kChi3);
}

TEST(Sampler, TemperatureSharpensAndFlattens) {
  const std::vector<float> logits = LogsOf({0.5, 0.25, 0.2, 0.05});
  for (const float temperature : {0.5f, 2.0f}) {
    std::vector<double> p;
    double total = 0;
    for (const float l : logits) total += std::exp(l / temperature);
    for (const float l : logits) p.push_back(std::exp(l / temperature) / total);
    EXPECT_LT(ChiSquare(Histogram(logits, Options(temperature), 20000), p), kChi3) << temperature;
  }
}

TEST(Sampler, FrequenciesWithinTheNucleusAreRenormalized) {
  SamplingOptions options = Options(1);
  options.top_k = 3;
  const std::vector<double> p = {0.4 / 0.9, 0.3 / 0.9, 0.2 / 0.9, 0};
  EXPECT_LT(ChiSquare(Histogram(LogsOf({0.4, 0.3, 0.2, 0.1}), options, 20000), p), kChi2);
  options.top_k = 0;
  options.top_p = 0.85f;
  EXPECT_LT(ChiSquare(Histogram(LogsOf({0.4, 0.3, 0.2, 0.1}), options, 20000), p), kChi2);
}

TEST(Sampler, ATokenDependsOnNothingButItsInput) {
  const std::vector<float> logits(50, 0.0f);
  const SamplingOptions options = Options(1);
  Sampler busy;
  for (uint32_t i = 0; i < 100; ++i) {
    Sampler fresh;
    const SamplingInput input{logits, options, {}, {}, {kSeed, 3, i}};
    const auto first = busy.Sample(input);
    busy.Sample({logits, options, {}, {}, {kSeed, 4, i}});
    EXPECT_EQ(busy.Sample(input), first);
    EXPECT_EQ(fresh.Sample(input), first);
  }
}

TEST(CounterRng, IsUniformAlongEveryCoordinateAndSoAreNeighboursDifferences) {
  constexpr uint32_t kDraws = 20000;
  const std::vector<double> p(16, 1.0 / 16);
  const auto chi = [&](const auto& uniform_at) {
    std::map<int32_t, int> counts;
    for (uint32_t i = 0; i < kDraws; ++i) ++counts[static_cast<int32_t>(uniform_at(i) * 16)];
    return ChiSquare(counts, p);
  };
  EXPECT_LT(chi([](uint32_t i) { return UniformAt({kSeed, 0, i}); }), kChi15);
  EXPECT_LT(chi([](uint32_t i) { return UniformAt({kSeed, i, 0}); }), kChi15);
  EXPECT_LT(chi([](uint32_t i) { return UniformAt({i, 0, 0}); }), kChi15);
  const auto difference = [](double a, double b) { return a - b - std::floor(a - b); };
  EXPECT_LT(chi([&](uint32_t i) {
              return difference(UniformAt({kSeed, 0, i}), UniformAt({kSeed, 1, i}));
            }),
            kChi15);
  EXPECT_LT(chi([&](uint32_t i) {
              return difference(UniformAt({kSeed, 0, i}), UniformAt({kSeed, 0, i + 1}));
            }),
            kChi15);
  EXPECT_LT(chi([&](uint32_t i) {
              return difference(UniformAt({i, 0, 9}), UniformAt({i + 1, 0, 9}));
            }),
            kChi15);
}

TEST(CounterRng, NoTwoPlacesShareANumber) {
  std::set<double> numbers;
  constexpr uint32_t kSide = 16;
  for (uint32_t seed = 0; seed < kSide; ++seed) {
    for (uint32_t sequence = 0; sequence < kSide; ++sequence) {
      for (uint32_t position = 0; position < kSide; ++position) {
        numbers.insert(UniformAt({seed, sequence, position}));
      }
    }
  }
  EXPECT_EQ(numbers.size(), kSide * kSide * kSide);
}

TEST(LogprobOf, IsTheLogSoftmaxOfTheRawLogits) {
  std::mt19937 random(9);
  std::vector<float> logits(1000);
  for (float& l : logits) l = std::normal_distribution<float>(0, 4)(random);
  double sum = 0;
  for (const float l : logits) sum += std::exp(double{l});
  const TokenLogprob result = LogprobOf(17, 3, logits).value();
  // Every exp is off by at most 2 ulp of its difference and of itself; the sum is all positive.
  constexpr double kEps = std::numeric_limits<float>::epsilon();
  const auto tolerance = [&](double value) { return kEps * (std::abs(value) + 40); };
  const double expected = logits[17] - std::log(sum);
  EXPECT_EQ(result.token, 17);
  EXPECT_NEAR(*result.logprob, expected, tolerance(expected));
  ASSERT_EQ(result.top.size(), 3u);
  std::vector<float> sorted = logits;
  std::sort(sorted.rbegin(), sorted.rend());
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(logits[static_cast<size_t>(result.top[i].first)], sorted[i]);
    const double want = sorted[i] - std::log(sum);
    EXPECT_NEAR(result.top[i].second, want, tolerance(want));
  }
}

TEST(LogprobOf, TopListsTheLowestIdsOfEqualOnesAndNoImpossibleTokens) {
  const float half = std::log(0.5f);
  EXPECT_THAT(LogprobOf(0, 2, std::vector<float>{3, kNan, 3, -kInf, 3})->top,
              ElementsAre(Pair(0, ::testing::_), Pair(2, ::testing::_)));
  EXPECT_THAT(LogprobOf(0, 5, std::vector<float>{3, kNan, 3, -kInf})->top,
              ElementsAre(Pair(0, ::testing::FloatEq(half)), Pair(2, ::testing::FloatEq(half))));
  EXPECT_THAT(LogprobOf(1, 0, std::vector<float>{3, 1})->top, IsEmpty());
  EXPECT_EQ(LogprobOf(0, 1, std::vector<float>{kNan, -kInf}), std::nullopt);
}

}  // namespace
}  // namespace atelier
