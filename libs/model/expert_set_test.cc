#include "libs/model/expert_set.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/synthetic_checkpoint.h"

namespace atelier {
namespace {

using ::atelier::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Layers 1-3 with 16 experts.
ModelConfig Config() { return ParseModelConfig(testing::TinyGlm4MoeConfig()).value(); }

TEST(ExpertSet, AreThoseOfTheFile) {
  ATELIER_ASSERT_OK_AND_ASSIGN(
      const ExpertSet skipped,
      ExpertSet::Parse("# hot on the GPU\n\n1: 0-2, 15\n  3 :4 # one\n", Config()));
  EXPECT_FALSE(skipped.empty());
  for (const int expert : {0, 1, 2, 15}) EXPECT_TRUE(skipped.Contains(1, expert)) << expert;
  for (const int expert : {3, 14, 16, 1000}) EXPECT_FALSE(skipped.Contains(1, expert)) << expert;
  EXPECT_TRUE(skipped.Contains(3, 4));
  EXPECT_FALSE(skipped.Contains(2, 4));
  EXPECT_FALSE(skipped.Contains(1000, 4));
  EXPECT_EQ(skipped.Count(1, 0, 16), 4);
  EXPECT_EQ(skipped.Count(1, 2, 15), 1);
  EXPECT_TRUE(ExpertSet().empty());
  EXPECT_FALSE(ExpertSet().Contains(1, 0));
}

TEST(ExpertSet, WhatIsWrongIsNamedWithItsLine) {
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"1: 0\n1: 2", "layer 1 comes twice"},
           {"1: 0\n0: 2", "\"0\" is no layer with experts"},
           {"1: 0\n4: 2", "\"4\" is no layer"},
           {"1: 0\n-1: 2", "\"-1\" is no layer"},
           {"1: 0\n2: 16", "the model has experts 0-15"},
           {"1: 0\n2: 3-16", "the model has experts 0-15"},
           {"1: 0\n2: 5-3", "\"5-3\" is neither"},
           {"1: 0\n2: a", "\"a\" is neither"},
           {"1: 0\n2:", "\"\" is neither"},
           {"1: 0\n2 3", "is not LAYER: EXPERTS"},
           {"1: 0\n2: 3: 4", "is not LAYER: EXPERTS"}}) {
    EXPECT_THAT(
        ExpertSet::Parse(text, Config()),
        StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("line 2: "), HasSubstr(part))))
        << text;
  }
}

}  // namespace
}  // namespace atelier
