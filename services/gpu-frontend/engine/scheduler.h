#pragma once

#include <set>
#include <vector>

#include "services/gpu-frontend/engine/kv_block_manager.h"
#include "services/gpu-frontend/engine/sequence.h"

namespace atelier {

struct SchedulerOptions {
  int max_running = 64;             // sequences
  int max_prompt_logit_rows = 128;  // rows of prompt logits per step, all sequences together
};

// The part of one sequence in a step: its tokens [start, start + count).
struct StepChunk {
  Sequence* sequence;
  int start;
  int count;
  int num_logits;  // rows wanted, those of its last tokens
};

struct StepPlan {
  std::vector<StepChunk> chunks;
  std::vector<Sequence*> admitted;  // from the queue, also again after a preemption
  int num_prompt_tokens = 0;        // in chunks of sequences that do not decode
  int num_preempted = 0;
};

// Chooses what each step computes: one token of every sequence that decodes, then prompts in chunks
// within a budget, first come first served. So a long prompt delays decodes by at most one budget.
// When blocks run out, the sequence that arrived last gives all of its own back and queues again
// where its arrival puts it; its tokens stay and are computed again (preemption by recompute). The
// oldest sequence is thus never preempted by a younger one and always gets on, provided each fits
// into the KV cache alone. A request's further sequences wait until the first one has computed the
// prompt and share its full blocks; the partial last block is recomputed (a ModelRunner cannot copy
// blocks). Not thread-safe; borrows sequences between Add and Remove.
class Scheduler {
 public:
  Scheduler(const SchedulerOptions& options, KvBlockManager& kv);

  // Queues a new sequence, one that fits into the KV cache alone.
  void Add(Sequence& sequence);
  // At most `prompt_tokens` of prompts, all sequences together. Empty only when nothing waits or
  // runs. Sequences of the plan are running. REQUIRES: prompt_tokens > 0.
  StepPlan Plan(int prompt_tokens);
  // Tells that the chunk is computed. A step that failed is not told: the sequences of its plan
  // are unchanged.
  void Complete(const StepChunk& chunk);
  // Forgets a sequence in any state and releases its blocks; it is kFinished then.
  void Remove(Sequence& sequence);

  bool empty() const { return waiting_.empty() && running_.empty(); }
  int num_waiting() const { return static_cast<int>(waiting_.size()); }
  int num_running() const { return static_cast<int>(running_.size()); }
  // Of waiting sequences, less what the prefix cache held when they came.
  int64_t num_waiting_tokens() const;

 private:
  struct ByArrival {
    bool operator()(const Sequence* a, const Sequence* b) const {
      return a->arrival != b->arrival ? a->arrival < b->arrival : a->index < b->index;
    }
  };
  struct Budget {
    int tokens;
    int logit_rows;
  };

  void PlanDecodes(StepPlan& plan);
  bool MakeRoom(Sequence& sequence, StepPlan& plan);
  void Preempt(Sequence& sequence);
  void PlanPrefill(Sequence& sequence, Budget& budget, StepPlan& plan);
  void Admit(Budget& budget, StepPlan& plan);
  bool AcquireBlocks(Sequence& sequence);

  const SchedulerOptions options_;
  KvBlockManager& kv_;
  std::set<Sequence*, ByArrival> waiting_;
  std::set<Sequence*, ByArrival> running_;
};

}  // namespace atelier
