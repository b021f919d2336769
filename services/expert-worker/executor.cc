#include "services/expert-worker/executor.h"

#include <algorithm>
#include <atomic>
#include <bit>

#include "libs/base/check.h"
#include "libs/base/checked_math.h"
#include "libs/kernels/aligned_buffer.h"
#include "libs/kernels/expert_ffn.h"
#include "libs/numa/node_arena.h"
#include "services/expert-worker/batch_plan.h"
#include "services/expert-worker/event_count.h"
#include "services/expert-worker/expert_store.h"
#include "services/expert-worker/token_rows.h"

namespace atelier {
namespace {

constexpr size_t kMaxTaskColumns = static_cast<size_t>(BatchPlan::kMaxTaskPanels) * kPanelWidth;
constexpr size_t kMaxTaskFloats = static_cast<size_t>(BatchPlan::kMaxUnitRows) * kMaxTaskColumns;
// Tokens that one thread prepares at a time.
constexpr size_t kMaxTokenRun = 16;
constexpr size_t kTokenRunsPerThread = 4;

// Where a down task stands. A thread that has claimed it adds units until one is not ready, and
// leaves the rest to whoever comes next.
struct alignas(64) DownState {
  enum : uint32_t { kFree, kClaimed, kDone };
  uint32_t claim;
  size_t next_unit;
};

bool AllFinite(const float* values, size_t count) {
  uint32_t not_finite = 0;
  for (size_t i = 0; i < count; ++i) {
    not_finite |= (std::bit_cast<uint32_t>(values[i]) & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
  }
  return not_finite == 0;
}

// Every thread runs Work: first the tokens are prepared, then gate and up of the units; whoever
// finishes the last task of a unit prepares its intermediate rows for down. When no such task is
// left to begin, threads add to the sums what is ready of down. So no phase waits for another but
// where it needs its results.
class BatchExecutor final : public Executor {
 public:
  BatchExecutor(const ExpertStore& store, const KernelTable& kernels, NodeArena& arena)
      : store_(store), kernels_(kernels), arena_(arena) {}

  int Forward(const LayerBatch& batch, const std::vector<float*>& out) override;

 private:
  void Start(const LayerBatch& batch);
  void StartTokenRows();
  void Work();
  void PrepareTokens(size_t run);
  void RunGateUp(const GateUpTask& task);
  void GateUp(const RowUnit& unit, const GateUpTask& task);
  void FinishGateUp(size_t unit);
  void WorkOnDown();
  bool AdvanceAnyDown();
  bool CanAdvance(const DownTask& task, DownState& state);
  bool AdvanceDown(const DownTask& task, DownState& state);
  void AddUnit(const RowUnit& unit, const DownTask& task);
  void ClearSums(const DownTask& task);
  void FindNotFinite(const DownTask& task);

  // The tasks of the unit that are not done; kReady once its intermediate rows are prepared.
  std::atomic_ref<int32_t> TasksLeft(size_t unit) {
    return std::atomic_ref<int32_t>(tasks_left_.data()[unit]);
  }
  bool IsReady(size_t unit) {
    return TasksLeft(unit).load(std::memory_order_acquire) == kReady;  // pairs with FinishGateUp
  }
  TokenRows& TokensFor(Method method) {
    return token_rows_[static_cast<size_t>(ActivationFormOf(method))];
  }
  // Of the sums of the task's shard, from its first column on; row stride = hidden_size.
  float* Sums(const DownTask& task) const {
    return (*out_)[task.shard] + static_cast<size_t>(task.panel_begin) * kPanelWidth;
  }
  size_t Columns(const DownTask& task) const {
    const size_t hidden = static_cast<size_t>(batch_->tokens.hidden_size);
    return std::min(static_cast<size_t>(task.panel_end) * kPanelWidth, hidden) -
           static_cast<size_t>(task.panel_begin) * kPanelWidth;
  }

  static constexpr int32_t kReady = -1;

  const ExpertStore& store_;
  const KernelTable& kernels_;
  NodeArena& arena_;

  // Everything below is rewritten by each Forward and only ever grows.
  const LayerBatch* batch_ = nullptr;
  const std::vector<float*>* out_ = nullptr;
  BatchPlan plan_;
  std::vector<TokenRows> token_rows_;  // by ActivationForm
  AlignedBuffer<float> inner_;         // of each unit [num_rows, panels of gate * 16]
  AlignedBuffer<uint8_t> prepared_inner_;
  AlignedBuffer<float> inner_scales_;
  AlignedBuffer<int32_t> tasks_left_;
  AlignedBuffer<DownState> down_states_;
  AlignedBuffer<uint8_t> not_finite_;  // [T], 0 or 1

  size_t token_run_ = 0;  // tokens
  size_t num_token_runs_ = 0;
  std::atomic<size_t> next_task_{0};        // token runs, then gate/up tasks
  std::atomic<size_t> token_runs_left_{0};  // not done
  std::atomic<size_t> units_left_{0};       // not ready
  EventCount events_;
};

int BatchExecutor::Forward(const LayerBatch& batch, const std::vector<float*>& out) {
  ATELIER_CHECK(out.size() == store_.shards().size());
  batch_ = &batch;
  out_ = &out;
  plan_.Make(store_, batch, arena_.num_threads());
  Start(batch);
  arena_.ParallelFor(plan_.num_threads(), [this](int64_t) { Work(); });
  const uint8_t* flags = not_finite_.data();
  return static_cast<int>(std::count(flags, flags + batch.tokens.num_tokens, uint8_t{1}));
}

void BatchExecutor::Start(const LayerBatch& batch) {
  const size_t num_tokens = static_cast<size_t>(batch.tokens.num_tokens);
  const size_t num_units = plan_.units().size();
  StartTokenRows();
  inner_.Reserve(plan_.inner_floats());
  prepared_inner_.Reserve(plan_.prepared_bytes());
  inner_scales_.Reserve(plan_.rows().size());
  tasks_left_.Reserve(num_units);
  for (size_t u = 0; u < num_units; ++u) tasks_left_.data()[u] = plan_.units()[u].num_tasks;
  const std::vector<DownTask>& down = plan_.down_tasks();
  down_states_.Reserve(down.size());
  for (size_t i = 0; i < down.size(); ++i) {
    down_states_.data()[i] = {DownState::kFree, down[i].unit_begin};
  }
  std::fill_n(not_finite_.Reserve(num_tokens), num_tokens, uint8_t{0});
  const size_t wanted_runs = kTokenRunsPerThread * static_cast<size_t>(plan_.num_threads());
  token_run_ = std::clamp<size_t>(num_tokens / wanted_runs, 1, kMaxTokenRun);
  num_token_runs_ = num_units == 0 ? 0 : CeilDiv(num_tokens, token_run_);
  next_task_ = 0;
  token_runs_left_ = num_token_runs_;
  units_left_ = num_units;
}

// Gate and up may have methods, and so forms, of their own.
void BatchExecutor::StartTokenRows() {
  for (TokenRows& rows : token_rows_) rows.Skip();
  for (const RowUnit& unit : plan_.units()) {
    for (const Method method : {unit.expert->gate.method, unit.expert->up.method}) {
      const auto form = static_cast<size_t>(ActivationFormOf(method));
      if (form >= token_rows_.size()) token_rows_.resize(form + 1);
      if (!token_rows_[form].used()) token_rows_[form].Start(method, *batch_, plan_.rows().size());
    }
  }
}

void BatchExecutor::Work() {
  const size_t num_tasks = num_token_runs_ + plan_.gate_up_tasks().size();
  for (size_t i = next_task_.fetch_add(1, std::memory_order_relaxed); i < num_tasks;
       i = next_task_.fetch_add(1, std::memory_order_relaxed)) {
    if (i < num_token_runs_) {
      PrepareTokens(i);
    } else {
      RunGateUp(plan_.gate_up_tasks()[i - num_token_runs_]);
    }
  }
  WorkOnDown();
}

void BatchExecutor::PrepareTokens(size_t run) {
  const size_t num_tokens = static_cast<size_t>(batch_->tokens.num_tokens);
  const size_t begin = run * token_run_;
  const size_t end = std::min(begin + token_run_, num_tokens);
  for (TokenRows& rows : token_rows_) {
    if (rows.used()) rows.Prepare(*batch_, plan_.route_rows(), begin, end);
  }
  // Pairs with the load in RunGateUp.
  if (token_runs_left_.fetch_sub(1, std::memory_order_acq_rel) == 1) events_.Signal();
}

void BatchExecutor::RunGateUp(const GateUpTask& task) {
  for (uint32_t seen = events_.Now(); token_runs_left_.load(std::memory_order_acquire) > 0;
       seen = events_.Now()) {
    events_.Await(seen);
  }
  for (size_t unit = task.unit_begin; unit < task.unit_end; ++unit) {
    GateUp(plan_.units()[unit], task);
    FinishGateUp(unit);
  }
}

void BatchExecutor::GateUp(const RowUnit& unit, const GateUpTask& task) {
  alignas(64) float up[kMaxTaskFloats];
  const ExpertView& expert = *unit.expert;
  const size_t width = static_cast<size_t>(expert.gate.num_panels()) * kPanelWidth;
  const size_t columns = static_cast<size_t>(task.panel_end - task.panel_begin) * kPanelWidth;
  float* gate =
      inner_.data() + unit.inner_begin + static_cast<size_t>(task.panel_begin) * kPanelWidth;
  Gemm(kernels_, expert.gate, TokensFor(expert.gate.method).RowsOf(plan_, unit), task.panel_begin,
       task.panel_end, gate, width);
  Gemm(kernels_, expert.up, TokensFor(expert.up.method).RowsOf(plan_, unit), task.panel_begin,
       task.panel_end, up, columns);
  for (size_t r = 0; r < static_cast<size_t>(unit.num_rows); ++r) {
    Activate(kernels_, expert,
             {gate + r * width, up + r * columns,
              static_cast<size_t>(task.panel_begin) * kPanelWidth, columns});
  }
}

void BatchExecutor::FinishGateUp(size_t index) {
  // Of all tasks of the unit: the last one sees what the others wrote.
  if (TasksLeft(index).fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  const RowUnit& unit = plan_.units()[index];
  const ExpertView& expert = *unit.expert;
  PrepareRows(expert.down.method, inner_.data() + unit.inner_begin,
              static_cast<size_t>(expert.gate.num_panels()) * kPanelWidth, unit.num_rows,
              expert.down.k, prepared_inner_.data() + unit.prepared_begin,
              inner_scales_.data() + unit.first_row);
  TasksLeft(index).store(kReady, std::memory_order_release);  // pairs with IsReady
  units_left_.fetch_sub(1, std::memory_order_release);        // pairs with WorkOnDown
  events_.Signal();
}

void BatchExecutor::WorkOnDown() {
  for (;;) {
    const uint32_t seen = events_.Now();
    const bool all_ready = units_left_.load(std::memory_order_acquire) == 0;
    if (AdvanceAnyDown()) continue;
    // What is claimed then is brought to its end by who has claimed it.
    if (all_ready) return;
    events_.Await(seen);
  }
}

bool BatchExecutor::AdvanceAnyDown() {
  for (size_t i = 0; i < plan_.down_tasks().size(); ++i) {
    const DownTask& task = plan_.down_tasks()[i];
    DownState& state = down_states_.data()[i];
    const std::atomic_ref<uint32_t> claim(state.claim);
    uint32_t expected = DownState::kFree;
    // The orders pair with one another: with the claim, the sums are passed on.
    if (!CanAdvance(task, state) ||
        !claim.compare_exchange_strong(expected, DownState::kClaimed, std::memory_order_acquire)) {
      continue;
    }
    const bool done = AdvanceDown(task, state);
    claim.store(done ? DownState::kDone : DownState::kFree, std::memory_order_release);
    return true;
  }
  return false;
}

// A guess without the claim, which spares most of the vain claims.
bool BatchExecutor::CanAdvance(const DownTask& task, DownState& state) {
  if (std::atomic_ref<uint32_t>(state.claim).load(std::memory_order_relaxed) != DownState::kFree) {
    return false;
  }
  const size_t unit = std::atomic_ref<size_t>(state.next_unit).load(std::memory_order_relaxed);
  return unit == task.unit_end || IsReady(unit);
}

// True when the task is done. Only by who has claimed it.
bool BatchExecutor::AdvanceDown(const DownTask& task, DownState& state) {
  const std::atomic_ref<size_t> next(state.next_unit);
  size_t unit = next.load(std::memory_order_relaxed);
  if (unit == task.unit_begin && (unit == task.unit_end || IsReady(unit))) ClearSums(task);
  while (unit < task.unit_end && IsReady(unit)) AddUnit(plan_.units()[unit++], task);
  next.store(unit, std::memory_order_relaxed);
  if (unit < task.unit_end) return false;
  FindNotFinite(task);
  return true;
}

void BatchExecutor::AddUnit(const RowUnit& unit, const DownTask& task) {
  alignas(64) float products[kMaxTaskFloats];
  const PackedMatrix& down = unit.expert->down;
  const size_t width = static_cast<size_t>(task.panel_end - task.panel_begin) * kPanelWidth;
  const ActivationRows rows{prepared_inner_.data() + unit.prepared_begin,
                            ActivationRowBytes(down.method, down.k),
                            inner_scales_.data() + unit.first_row, unit.num_rows};
  Gemm(kernels_, down, rows, task.panel_begin, task.panel_end, products, width);
  const size_t hidden = static_cast<size_t>(batch_->tokens.hidden_size);
  const size_t columns = Columns(task);
  const float* bias = unit.expert->down_bias;
  if (bias != nullptr) bias += static_cast<size_t>(task.panel_begin) * kPanelWidth;
  for (size_t r = 0; r < static_cast<size_t>(unit.num_rows); ++r) {
    float* product = products + r * width;
    for (size_t c = 0; bias != nullptr && c < columns; ++c) product[c] += bias[c];
    const RoutedRow& routed = plan_.rows()[unit.first_row + r];
    float* sums = Sums(task) + static_cast<size_t>(routed.token) * hidden;
    for (size_t c = 0; c < columns; ++c) sums[c] += routed.weight * product[c];
  }
}

void BatchExecutor::ClearSums(const DownTask& task) {
  const size_t hidden = static_cast<size_t>(batch_->tokens.hidden_size);
  float* sums = Sums(task);
  for (int t = 0; t < batch_->tokens.num_tokens; ++t, sums += hidden) {
    std::fill_n(sums, Columns(task), 0.0f);
  }
}

void BatchExecutor::FindNotFinite(const DownTask& task) {
  const size_t hidden = static_cast<size_t>(batch_->tokens.hidden_size);
  const float* sums = Sums(task);
  for (int t = 0; t < batch_->tokens.num_tokens; ++t, sums += hidden) {
    if (AllFinite(sums, Columns(task))) continue;
    std::atomic_ref<uint8_t>(not_finite_.data()[t]).store(1, std::memory_order_relaxed);
  }
}

}  // namespace

std::unique_ptr<Executor> CreateExecutor(const ExpertStore& store, const KernelTable& kernels,
                                         NodeArena& arena) {
  return std::make_unique<BatchExecutor>(store, kernels, arena);
}

}  // namespace atelier
