#include "libs/model/reference.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atelier::reference {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::Pointwise;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Expected values are worked out by hand or are closed forms, not taken from the code.

TEST(RmsNorm, DividesByTheRootOfTheMeanSquare) {
  // mean square of {3, 4} is 12.5; eps lifts it to 16.
  EXPECT_THAT(RmsNorm({3, 4}, {1, 2}, 3.5), ElementsAre(0.75f, 2.0f));
}

TEST(MatVec, MultipliesRowsAndAddsTheBias) {
  EXPECT_THAT(MatVec({1, 2, 3, 4, 5, 6}, {1, 10}), ElementsAre(21, 43, 65));
  EXPECT_THAT(MatVec({1, 2, 3, 4, 5, 6}, {1, 10}, {0.5, 0, -1}), ElementsAre(21.5f, 43, 64));
}

TEST(ApplyRope, PairsTheHalvesAndLeavesTheRestAlone) {
  // rotary_dim 4: pairs (0, 2) at angle position and (1, 3) at position / sqrt(theta).
  std::vector<float> head = {1, 1, 0, 0, 7, 8};
  ApplyRope(absl::MakeSpan(head), 4, 100.0, 2);
  EXPECT_THAT(head, ElementsAre(FloatEq(std::cos(2.0f)), FloatEq(std::cos(0.2f)),
                                FloatEq(std::sin(2.0f)), FloatEq(std::sin(0.2f)), 7, 8));
}

TEST(ApplyRope, PositionZeroChangesNothing) {
  std::vector<float> head = {1, 2, 3, 4};
  ApplyRope(absl::MakeSpan(head), 4, 1e6, 0);
  EXPECT_THAT(head, ElementsAre(1, 2, 3, 4));
}

TEST(Attention, IsCausalAndSharesKeyHeadsAmongNeighbours) {
  // Two positions, 4 query heads on 2 key heads, dim 1. Zero keys: each value visible counts alike.
  const AttentionConfig config{.num_heads = 4, .num_kv_heads = 2, .head_dim = 1};
  const std::vector<float> q(8, 1.0f);
  const std::vector<float> k(4, 0.0f);
  EXPECT_THAT(Attention(config, q, k, {2, 20, 4, 40}), ElementsAre(2, 2, 20, 20, 3, 3, 30, 30));
  // Only the last position is asked: it still sees both.
  EXPECT_THAT(Attention(config, absl::MakeSpan(q).subspan(4), k, {2, 20, 4, 40}),
              ElementsAre(3, 3, 30, 30));
}

TEST(Attention, ScalesScoresByTheRootOfTheHeadDim) {
  const AttentionConfig config{.num_heads = 1, .num_kv_heads = 1, .head_dim = 4};
  // Scores 0 and ln 3 * 2 / sqrt(4) = ln 3: weights 1/4 and 3/4.
  const float l = std::log(3.0f);
  const std::vector<float> out =
      Attention(config, {2, 0, 0, 0}, {0, 0, 0, 0, l, 0, 0, 0}, {0, 0, 0, 0, 4, 8, 0, 0});
  EXPECT_THAT(out, Pointwise(FloatEq(), {3.0f, 6.0f, 0.0f, 0.0f}));
}

MoeConfig Softmax(int num_experts, int top_k) {
  return {.num_experts = num_experts, .top_k = top_k, .scoring = RouterScoring::kSoftmax};
}

MoeConfig Sigmoid(int num_experts, int top_k) {
  return {.num_experts = num_experts,
          .top_k = top_k,
          .scoring = RouterScoring::kSigmoid,
          .correction_bias = true};
}

// The logit whose sigmoid is `score`.
float Logit(double score) { return static_cast<float>(std::log(score / (1 - score))); }

TEST(RouteSoftmax, WeighsTheLargestByTheirShare) {
  const float l2 = std::log(2.0f), l4 = std::log(4.0f);
  RouterChoice choice = Route(Softmax(3, 2), {0, l4, l2}, {});
  EXPECT_THAT(choice.experts, ElementsAre(1, 2));
  EXPECT_THAT(choice.weights, ElementsAre(FloatEq(4.0f / 6), FloatEq(2.0f / 6)));
  MoeConfig config = Softmax(3, 2);
  config.normalize_weights = false;
  config.routed_scaling_factor = 7;
  choice = Route(config, {0, l4, l2}, {});
  EXPECT_THAT(choice.weights, ElementsAre(FloatEq(4), FloatEq(2)));
}

TEST(Route, LetsTheLowerIndexWinATie) {
  EXPECT_THAT(Route(Softmax(5, 3), {1, 2, 2, 1, 1}, {}).experts, ElementsAre(1, 2, 0));
  const std::vector<float> bias(5, 0.0f);
  EXPECT_THAT(Route(Sigmoid(5, 3), {1, 2, 2, 1, 1}, bias).experts, ElementsAre(1, 2, 0));
}

TEST(Route, KeepsTheOrderOfLogitsThatUnderflow) {
  EXPECT_THAT(Route(Softmax(3, 3), {-3000, -2000, 0}, {}).experts, ElementsAre(2, 1, 0));
}

TEST(RouteSigmoid, ChoosesByBiasAndWeighsWithoutIt) {
  MoeConfig config = Sigmoid(3, 2);
  config.routed_scaling_factor = 2.5;
  const RouterChoice choice =
      Route(config, {Logit(0.8), Logit(0.2), Logit(0.6)}, {-1.0f, 0.5f, 0.0f});
  EXPECT_THAT(choice.experts, ElementsAre(1, 2));  // 0.7 and 0.6 against -0.2
  EXPECT_THAT(choice.weights, ElementsAre(FloatEq(2.5f * 0.25f), FloatEq(2.5f * 0.75f)));
}

TEST(RouteSigmoid, ChoosesWithinTheBestGroupsOnly) {
  MoeConfig config = Sigmoid(6, 2);
  config.num_groups = 3;
  config.top_k_groups = 1;
  const std::vector<float> bias(6, 0.0f);
  // Group sums 0.95, 1.1, 0.6: the best single expert (0) lies outside the best group.
  const RouterChoice choice = Route(
      config, {Logit(0.9), Logit(0.05), Logit(0.5), Logit(0.6), Logit(0.3), Logit(0.3)}, bias);
  EXPECT_THAT(choice.experts, ElementsAre(3, 2));
}

TEST(RouteSigmoid, GroupsThatAreNotChosenLoseEvenToNegativeValues) {
  MoeConfig config = Sigmoid(4, 2);
  config.num_groups = 2;
  config.top_k_groups = 1;
  const std::vector<float> bias = {-5, -5, -4, -7};  // sums about -9 and -10
  EXPECT_THAT(Route(config, {0, 0, 0, 0}, bias).experts, ElementsAre(0, 1));
}

TEST(Route, TreatsNanAsTheWorst) {
  RouterChoice choice = Route(Softmax(3, 2), {kNan, 0, 0}, {});
  EXPECT_THAT(choice.experts, ElementsAre(1, 2));
  EXPECT_THAT(choice.weights, ElementsAre(0.5f, 0.5f));
  choice = Route(Softmax(2, 2), {kNan, 1}, {});
  EXPECT_THAT(choice.experts, ElementsAre(1, 0));
  EXPECT_THAT(choice.weights, ElementsAre(1, 0));
  choice = Route(Softmax(2, 2), {kNan, kNan}, {});
  EXPECT_THAT(choice.weights, ElementsAre(0, 0));
  choice = Route(Sigmoid(3, 2), {0, 0, kNan}, {0, kNan, 0});
  EXPECT_THAT(choice.experts, ElementsAre(0, 1));
  EXPECT_THAT(choice.weights, ElementsAre(1, 0));
}

TEST(SwiGluFfn, GatesUpBySiluOfGate) {
  // H 2, I 1: gate 1, up 3: silu(1) * 3, then down {1, 2}.
  const std::vector<float> gate = {1, 0}, up = {1, 2}, down = {1, 2};
  const float silu = 1.0f / (1.0f + std::exp(-1.0f));
  EXPECT_THAT(SwiGluFfn({.gate = gate, .up = up, .down = down}, {1, 1}),
              ElementsAre(FloatEq(3 * silu), FloatEq(6 * silu)));
}

}  // namespace
}  // namespace atelier::reference
