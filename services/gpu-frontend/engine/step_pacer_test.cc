#include "services/gpu-frontend/engine/step_pacer.h"

#include "gtest/gtest.h"

namespace atelier {
namespace {

constexpr absl::Duration kMaxStep = absl::Milliseconds(100);

// Plays `steps` shared steps, each `fixed` plus `per_token`; returns how long the last one took.
absl::Duration Play(StepPacer& pacer, int steps, absl::Duration fixed, absl::Duration per_token) {
  absl::Duration took;
  for (int i = 0; i < steps; ++i) {
    const int tokens = pacer.PromptTokens(true);
    took = fixed + tokens * per_token;
    pacer.Record(tokens, took);
  }
  return took;
}

TEST(StepPacer, LeavesALoneRequestTheWholeChunk) {
  StepPacer pacer(512, kMaxStep);
  EXPECT_EQ(pacer.PromptTokens(false), 512);
  pacer.Record(512, absl::Seconds(4));
  EXPECT_EQ(pacer.PromptTokens(false), 512);
}

TEST(StepPacer, StartsSmallWhereNothingIsKnown) {
  EXPECT_EQ(StepPacer(512, kMaxStep).PromptTokens(true), StepPacer::kMinTokens);
  EXPECT_EQ(StepPacer(5, kMaxStep).PromptTokens(true), 5);
}

TEST(StepPacer, SizesASharedStepByTheCostOfALoneOne) {
  StepPacer pacer(512, kMaxStep);
  pacer.Record(512, 512 * absl::Milliseconds(4));
  EXPECT_EQ(pacer.PromptTokens(true), 25);
}

TEST(StepPacer, SettlesOnTheBoundWithTheFixedCostInIt) {
  StepPacer pacer(512, kMaxStep);
  const absl::Duration token = absl::Microseconds(900);
  const absl::Duration took = Play(pacer, 20, absl::Milliseconds(30), token);
  EXPECT_LE(took, kMaxStep + token);
  EXPECT_GE(took, kMaxStep - 2 * token);
}

TEST(StepPacer, FollowsACostThatGrows) {
  StepPacer pacer(512, kMaxStep);
  Play(pacer, 20, absl::ZeroDuration(), absl::Microseconds(300));
  const absl::Duration token = absl::Milliseconds(2);
  EXPECT_LE(Play(pacer, 10, absl::ZeroDuration(), token), kMaxStep + token);
}

TEST(StepPacer, RecoversFromOneSlowStep) {
  StepPacer pacer(512, kMaxStep);
  Play(pacer, 10, absl::ZeroDuration(), absl::Milliseconds(1));
  pacer.Record(100, absl::Seconds(10));
  const absl::Duration took = Play(pacer, 20, absl::ZeroDuration(), absl::Milliseconds(1));
  EXPECT_GE(took, kMaxStep * 9 / 10);
}

TEST(StepPacer, APromptGetsOnHoweverSlowStepsAre) {
  StepPacer pacer(512, kMaxStep);
  Play(pacer, 20, absl::Seconds(1), absl::Seconds(1));
  EXPECT_EQ(pacer.PromptTokens(true), StepPacer::kMinTokens);
}

TEST(StepPacer, NeverExceedsTheChunkOnAFastMachine) {
  StepPacer pacer(512, kMaxStep);
  pacer.Record(512, absl::ZeroDuration());
  EXPECT_EQ(pacer.PromptTokens(true), 512);
  pacer.Record(512, absl::Microseconds(1));
  EXPECT_EQ(pacer.PromptTokens(true), 512);
}

TEST(StepPacer, ZeroTurnsTheBoundOff) {
  StepPacer pacer(512, absl::ZeroDuration());
  pacer.Record(512, absl::Seconds(4));
  EXPECT_EQ(pacer.PromptTokens(true), 512);
}

TEST(StepPacer, StepsOfDecodesAloneTeachNothing) {
  StepPacer pacer(512, kMaxStep);
  pacer.Record(100, absl::Milliseconds(100));
  pacer.Record(0, absl::Seconds(100));
  EXPECT_EQ(pacer.PromptTokens(true), 100);
}

}  // namespace
}  // namespace atelier
