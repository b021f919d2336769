#include "services/gpu-frontend/engine/scheduler.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atelier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kBlock = 4;

// Plays the model: every planned chunk is computed and yields token 1 where logits are due.
class SchedulerTest : public ::testing::Test {
 protected:
  void Make(int num_blocks, const SchedulerOptions& options, int prompt_tokens,
            bool prefix_cache = false) {
    prompt_tokens_ = prompt_tokens;
    kv_ = std::make_unique<KvBlockManager>(num_blocks, kBlock, prefix_cache);
    scheduler_ = std::make_unique<Scheduler>(options, *kv_);
  }
  // Adds a request of `n` sequences whose prompt equals no other one's.
  SequenceGroup& Add(int prompt_size, int n = 1) {
    groups_.push_back(std::make_unique<SequenceGroup>());
    SequenceGroup& group = *groups_.back();
    for (int i = 0; i < n; ++i) {
      auto s = std::make_unique<Sequence>();
      s->arrival = groups_.size();
      s->index = i;
      s->group = &group;
      s->tokens.assign(static_cast<size_t>(prompt_size), static_cast<int32_t>(groups_.size()));
      s->prompt_size = prompt_size;
      s->next_prompt_logprob = prompt_size;
      group.push_back(std::move(s));
    }
    for (const auto& s : group) scheduler_->Add(*s);
    return group;
  }
  StepPlan Step() {
    StepPlan plan = scheduler_->Plan(prompt_tokens_);
    for (const StepChunk& chunk : plan.chunks) {
      scheduler_->Complete(chunk);
      if (chunk.sequence->num_remaining() == 0) chunk.sequence->tokens.push_back(1);
    }
    return plan;
  }
  // (sequence, count) of a plan.
  static std::vector<std::pair<const Sequence*, int>> Counts(const StepPlan& plan) {
    std::vector<std::pair<const Sequence*, int>> counts;
    for (const StepChunk& c : plan.chunks) counts.emplace_back(c.sequence, c.count);
    return counts;
  }
  using Count = std::pair<const Sequence*, int>;

  int prompt_tokens_ = 0;  // of a step
  std::unique_ptr<KvBlockManager> kv_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::unique_ptr<SequenceGroup>> groups_;
};

TEST_F(SchedulerTest, ALongPromptNeverKeepsADecodeFromItsStep) {
  Make(64, {.max_running = 8}, /*prompt_tokens=*/10);
  Sequence& decoding = *Add(3)[0];
  Step();
  Sequence& prompt = *Add(25)[0];
  EXPECT_THAT(Counts(Step()), ElementsAre(Count(&decoding, 1), Count(&prompt, 10)));
  EXPECT_THAT(Counts(Step()), ElementsAre(Count(&decoding, 1), Count(&prompt, 10)));
  const StepPlan last = Step();
  EXPECT_THAT(Counts(last), ElementsAre(Count(&decoding, 1), Count(&prompt, 5)));
  EXPECT_EQ(last.chunks[1].num_logits, 1);
}

TEST_F(SchedulerTest, PromptsShareTheBudgetInOrderOfArrival) {
  Make(64, {.max_running = 8}, /*prompt_tokens=*/10);
  Sequence& a = *Add(7)[0];
  Sequence& b = *Add(8)[0];
  Sequence& c = *Add(4)[0];
  EXPECT_THAT(Counts(Step()), ElementsAre(Count(&a, 7), Count(&b, 3)));
  EXPECT_THAT(Counts(Step()), ElementsAre(Count(&a, 1), Count(&b, 5), Count(&c, 4)));
}

TEST_F(SchedulerTest, RunsNoMoreSequencesThanAllowed) {
  Make(64, {.max_running = 2}, /*prompt_tokens=*/100);
  Add(3);
  Add(3);
  Sequence& third = *Add(3)[0];
  EXPECT_THAT(Step().chunks, SizeIs(2));
  EXPECT_EQ(scheduler_->num_waiting(), 1);
  scheduler_->Remove(*(*groups_[0])[0]);
  EXPECT_THAT(Step().admitted, ElementsAre(&third));
}

TEST_F(SchedulerTest, TheYoungestGivesWayAndComesBackBeforeLaterOnes) {
  Make(4, {.max_running = 8}, /*prompt_tokens=*/100);
  Sequence& old = *Add(4)[0];
  Sequence& young = *Add(4)[0];
  Step();
  Step();  // young is let in once old has its second block
  while (young.state == SequenceState::kRunning || young.num_output() == 0) {
    ASSERT_LT(old.size(), 16);
    Step();
  }
  EXPECT_EQ(old.state, SequenceState::kRunning);
  EXPECT_EQ(young.state, SequenceState::kWaiting);
  EXPECT_THAT(young.blocks.blocks, IsEmpty());
  const int kept = young.num_output();
  EXPECT_GT(kept, 0);
  Add(4);
  scheduler_->Remove(old);
  const StepPlan plan = Step();
  EXPECT_EQ(plan.admitted.front(), &young);
  EXPECT_THAT(Counts(plan).front(), Count(&young, 4 + kept));
}

TEST_F(SchedulerTest, NobodyOvertakesTheHeadOfTheQueue) {
  Make(4, {.max_running = 8}, /*prompt_tokens=*/100);
  Add(8);
  Step();
  Sequence& large = *Add(12)[0];
  Sequence& small = *Add(2)[0];
  EXPECT_THAT(Step().admitted, IsEmpty());
  scheduler_->Remove(*(*groups_[0])[0]);
  EXPECT_THAT(Step().admitted, ElementsAre(&large));
  EXPECT_EQ(small.state, SequenceState::kWaiting);
}

TEST_F(SchedulerTest, FurtherSequencesShareTheFullPromptBlocksOfTheFirst) {
  for (const bool prefix_cache : {false, true}) {
    SCOPED_TRACE(prefix_cache);
    groups_.clear();
    Make(64, {.max_running = 8}, /*prompt_tokens=*/6, prefix_cache);
    SequenceGroup& group = Add(10, 3);
    EXPECT_THAT(Counts(Step()), ElementsAre(Count(group[0].get(), 6)));
    EXPECT_THAT(Counts(Step()), ElementsAre(Count(group[0].get(), 4)));
    // Two full blocks are shared, the partial third one is computed by each.
    EXPECT_THAT(Counts(Step()), ElementsAre(Count(group[0].get(), 1), Count(group[1].get(), 2),
                                            Count(group[2].get(), 2)));
    for (size_t i = 1; i < 3; ++i) {
      EXPECT_EQ(group[i]->blocks.blocks[0], group[0]->blocks.blocks[0]);
      EXPECT_EQ(group[i]->blocks.blocks[1], group[0]->blocks.blocks[1]);
      EXPECT_NE(group[i]->blocks.blocks[2], group[0]->blocks.blocks[2]);
    }
    EXPECT_EQ(kv_->used_blocks(), 2 + 3);
  }
}

TEST_F(SchedulerTest, APromptOfFullBlocksStillComputesItsLastBlock) {
  Make(64, {.max_running = 8}, /*prompt_tokens=*/100);
  SequenceGroup& group = Add(8, 2);
  Step();
  EXPECT_THAT(Counts(Step()), ElementsAre(Count(group[0].get(), 1), Count(group[1].get(), 4)));
}

TEST_F(SchedulerTest, PromptLogitsAreBoundedPerStepAndNotTakenFromTheCache) {
  Make(64, {.max_running = 8, .max_prompt_logit_rows = 6}, /*prompt_tokens=*/100, true);
  Sequence& s = *Add(20)[0];
  s.next_prompt_logprob = 9;  // needs the logits of positions 8 … 18, and 19 to go on
  StepPlan plan = Step();
  ASSERT_THAT(Counts(plan), ElementsAre(Count(&s, 14)));
  EXPECT_EQ(plan.chunks[0].num_logits, 6);
  s.next_prompt_logprob = 15;
  plan = Step();
  ASSERT_THAT(Counts(plan), ElementsAre(Count(&s, 6)));
  EXPECT_EQ(plan.chunks[0].num_logits, 6);
  s.next_prompt_logprob = 20;

  SequenceGroup& again = Add(20);
  again[0]->tokens = s.tokens;
  again[0]->tokens.resize(20);
  again[0]->next_prompt_logprob = 10;
  plan = Step();
  EXPECT_EQ(plan.chunks[1].start, 8);  // position 9 is wanted: only two blocks may be reused
}

TEST_F(SchedulerTest, WaitingTokensAreCounted) {
  Make(64, {.max_running = 1}, /*prompt_tokens=*/100);
  Add(5);
  Step();
  Add(7, 2);
  EXPECT_EQ(scheduler_->num_waiting_tokens(), 14);
  EXPECT_EQ(scheduler_->num_running(), 1);
}

}  // namespace
}  // namespace atelier
