#include "services/gpu-frontend/engine/scheduler.h"

#include <algorithm>

#include "libs/base/check.h"

namespace atelier {
namespace {

// First position of [start, …) whose logits give a prompt log-probability that is still wanted.
int FirstPromptLogit(const Sequence& s, int start) {
  return std::max(start, s.next_prompt_logprob - 1);
}

int NumLogits(const Sequence& s, int start, int count) {
  const int end = start + count;
  if (s.wants_prompt_logits()) return std::max(0, end - FirstPromptLogit(s, start));
  return end == s.size() ? 1 : 0;
}

// Leading tokens that need not be computed when other blocks hold them: never the last one, whose
// logits choose the next token.
int MaxReusable(const Sequence& s) {
  return s.wants_prompt_logits() ? s.next_prompt_logprob - 1 : s.size() - 1;
}

// Computing the prompt of a request once is cheaper than at once for all of its sequences.
bool WaitsForFirst(const Sequence& s) {
  const Sequence& first = *s.group->front();
  return &first != &s && first.state == SequenceState::kRunning &&
         first.num_computed < first.prompt_size;
}

const Sequence* RunningWithPrompt(const SequenceGroup& group) {
  for (const auto& s : group) {
    if (s->state == SequenceState::kRunning && s->num_computed >= s->prompt_size) return s.get();
  }
  return nullptr;
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options, KvBlockManager& kv)
    : options_(options), kv_(kv) {
  ATELIER_CHECK(options.max_running > 0 && options.max_prompt_logit_rows > 0);
}

void Scheduler::Add(Sequence& sequence) {
  ATELIER_CHECK(sequence.state == SequenceState::kNew && !sequence.tokens.empty());
  sequence.state = SequenceState::kWaiting;
  sequence.num_cached_on_arrival = kv_.CountCached(sequence.tokens, MaxReusable(sequence));
  waiting_.insert(&sequence);
}

int64_t Scheduler::num_waiting_tokens() const {
  int64_t total = 0;
  for (const Sequence* s : waiting_) total += s->size() - s->num_cached_on_arrival;
  return total;
}

StepPlan Scheduler::Plan(int prompt_tokens) {
  ATELIER_CHECK(prompt_tokens > 0);
  StepPlan plan;
  PlanDecodes(plan);
  Budget budget{prompt_tokens, options_.max_prompt_logit_rows};
  for (Sequence* s : running_) {
    if (s->num_remaining() > 1) PlanPrefill(*s, budget, plan);
  }
  // Blocks are short just now: what comes in would be the first to go.
  if (plan.num_preempted == 0) Admit(budget, plan);
  return plan;
}

void Scheduler::PlanDecodes(StepPlan& plan) {
  // Oldest first: whoever is preempted is younger than the one room is made for, so it has no
  // chunk in this plan yet.
  for (auto it = running_.begin(); it != running_.end(); ++it) {
    Sequence& s = **it;
    if (s.num_remaining() != 1) continue;
    if (!MakeRoom(s, plan)) return;
    plan.chunks.push_back({&s, s.num_computed, 1, 1});
  }
}

bool Scheduler::MakeRoom(Sequence& sequence, StepPlan& plan) {
  while (!kv_.Grow(sequence.size(), sequence.blocks)) {
    Sequence* youngest = *running_.rbegin();
    Preempt(*youngest);
    ++plan.num_preempted;
    if (youngest == &sequence) return false;
  }
  return true;
}

void Scheduler::Preempt(Sequence& sequence) {
  running_.erase(&sequence);
  kv_.Release(sequence.blocks);
  sequence.num_computed = 0;
  sequence.state = SequenceState::kWaiting;
  waiting_.insert(&sequence);
}

void Scheduler::PlanPrefill(Sequence& s, Budget& budget, StepPlan& plan) {
  const int start = s.num_computed;
  int count = std::min(s.num_remaining(), budget.tokens);
  if (s.wants_prompt_logits()) {
    count = std::min(count, FirstPromptLogit(s, start) - start + budget.logit_rows);
  }
  if (count == 0) return;
  const int num_logits = NumLogits(s, start, count);
  budget.tokens -= count;
  if (s.wants_prompt_logits()) budget.logit_rows -= num_logits;
  plan.num_prompt_tokens += count;
  plan.chunks.push_back({&s, start, count, num_logits});
}

void Scheduler::Admit(Budget& budget, StepPlan& plan) {
  while (budget.tokens > 0 && num_running() < options_.max_running && !waiting_.empty()) {
    Sequence& s = **waiting_.begin();
    if (WaitsForFirst(s) || !AcquireBlocks(s)) return;
    waiting_.erase(waiting_.begin());
    running_.insert(&s);
    s.state = SequenceState::kRunning;
    plan.admitted.push_back(&s);
    PlanPrefill(s, budget, plan);
  }
}

bool Scheduler::AcquireBlocks(Sequence& s) {
  int reused = kv_.Attach(s.tokens, MaxReusable(s), s.blocks);
  if (reused == 0) {
    if (const Sequence* donor = RunningWithPrompt(*s.group); donor != nullptr) {
      const int num_shared = std::min(s.prompt_size, MaxReusable(s)) / kv_.block_size();
      kv_.Fork(donor->blocks, num_shared, s.blocks);
      reused = num_shared * kv_.block_size();
    }
  }
  // One block more for each sequence that runs, so that the newcomer does not drive it, or is not
  // driven, out with the next token.
  if (kv_.Missing(s.blocks, s.size()) + num_running() > kv_.available_blocks() ||
      !kv_.Grow(s.size(), s.blocks)) {
    kv_.Release(s.blocks);
    return false;
  }
  s.num_computed = reused;
  return true;
}

void Scheduler::Complete(const StepChunk& chunk) {
  Sequence& s = *chunk.sequence;
  ATELIER_CHECK(s.state == SequenceState::kRunning && s.num_computed == chunk.start);
  s.num_computed += chunk.count;
  kv_.Commit(s.tokens, s.num_computed, s.blocks);
}

void Scheduler::Remove(Sequence& sequence) {
  waiting_.erase(&sequence);
  running_.erase(&sequence);
  kv_.Release(sequence.blocks);
  sequence.state = SequenceState::kFinished;
}

}  // namespace atelier
