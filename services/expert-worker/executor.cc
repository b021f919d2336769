#include "services/expert-worker/executor.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <functional>

#include "libs/base/check.h"
#include "libs/base/checked_math.h"
#include "libs/kernels/aligned_buffer.h"
#include "libs/kernels/expert_ffn.h"
#include "libs/numa/node_arena.h"
#include "services/expert-worker/expert_store.h"

namespace atelier {
namespace {

// So many tasks per thread that the last one does not keep the others waiting for long, …
constexpr int64_t kTasksPerThread = 4;
// … but none wider than this, so that its products of kTaskRows rows stay in the L1/L2 cache.
constexpr int kMaxTaskPanels = 8;
constexpr int kTaskRows = 64;
constexpr size_t kTaskWidth = static_cast<size_t>(kMaxTaskPanels) * kPanelWidth;
// Rows that are worth handing to another thread for a copy or a conversion.
constexpr int kRowsPerTask = 16;

// A row of a token at one of its experts.
struct RoutedRow {
  int32_t token;
  float weight;
};

// All rows of one expert of one shard, consecutive in the workspace.
struct ExpertGroup {
  const ExpertView* expert;
  size_t first_row;       // index of its first RoutedRow
  int num_rows;           // >= 1
  size_t inner_begin;     // floats before its first row in inner_
  size_t prepared_begin;  // bytes before its first row in prepared_inner_

  size_t inner_width() const {
    return static_cast<size_t>(expert->gate.num_panels()) * kPanelWidth;
  }
};

struct PanelTask {
  size_t index;  // of the group (gate and up) or the shard (down)
  int panel_begin;
  int panel_end;
};

bool IsFinite(float value) { return (std::bit_cast<uint32_t>(value) & 0x7f800000u) != 0x7f800000u; }

class BatchExecutor final : public Executor {
 public:
  BatchExecutor(const ExpertStore& store, const KernelTable& kernels, NodeArena& arena)
      : store_(store), kernels_(kernels), arena_(arena) {}

  int Forward(const LayerBatch& batch, const std::vector<float*>& out) override {
    ATELIER_CHECK(out.size() == store_.shards().size());
    GroupRowsByExpert(batch);
    PrepareTokens(batch.tokens);
    GatherRows();
    RunGateAndUp();
    PrepareInner();
    RunDown(batch.tokens, out);
    return CountNotFinite(batch.tokens.num_tokens);
  }

 private:
  void GroupRowsByExpert(const LayerBatch& batch);
  void AddShardGroups(int shard, const LayerBatch& batch);
  void PrepareTokens(const TokenBatch& tokens);
  void GatherRows();
  void RunGateAndUp();
  void GateAndUp(const PanelTask& task);
  void PrepareInner();
  void RunDown(const TokenBatch& tokens, const std::vector<float*>& out);
  void Down(const PanelTask& task, const TokenBatch& tokens, float* out);
  void AddWeighted(const ExpertGroup& group, const PanelTask& task, int hidden_size, float* out);
  int CountNotFinite(int num_tokens);

  // Panels [0, num_panels) of task index `index`, cut into tasks of `width` panels.
  void AddPanelTasks(size_t index, int num_panels, int width);
  int TaskPanels(int64_t total_panels) const;
  // body(begin, end) over [0, count) in runs of kRowsPerTask; a single run stays on this thread.
  void ForRowRuns(size_t count, const std::function<void(size_t, size_t)>& body);

  size_t HiddenStride() const { return ActivationRowBytes(store_.method(), store_.hidden_size()); }
  size_t InnerStride(const ExpertGroup& group) const {
    return ActivationRowBytes(store_.method(), group.expert->down.k);
  }

  const ExpertStore& store_;
  const KernelTable& kernels_;
  NodeArena& arena_;

  // The workspace: everything below is rewritten by each Forward and only ever grows.
  std::vector<size_t> counts_;       // rows of each expert of the model in this batch
  std::vector<size_t> cursors_;      // next RoutedRow of each expert while grouping
  std::vector<RoutedRow> routed_;    // shard by shard, expert by expert (ascending), token by token
  std::vector<ExpertGroup> groups_;  // shard by shard, ascending expert; experts with rows only
  std::vector<size_t> shard_groups_;  // first group of each shard, and their number at the end
  std::vector<PanelTask> tasks_;
  size_t inner_floats_ = 0;
  size_t prepared_inner_bytes_ = 0;
  AlignedBuffer<uint8_t> tokens_;  // [T, HiddenStride], each token prepared once
  AlignedBuffer<float> token_scales_;
  AlignedBuffer<uint8_t> rows_;  // [routed_, HiddenStride], gathered
  AlignedBuffer<float> row_scales_;
  AlignedBuffer<float> inner_;  // per group [num_rows, inner_width]: silu(gate x) * (up x)
  AlignedBuffer<uint8_t> prepared_inner_;
  AlignedBuffer<float> inner_scales_;
  AlignedBuffer<uint8_t> not_finite_;  // [T], 0 or 1
};

void BatchExecutor::GroupRowsByExpert(const LayerBatch& batch) {
  const size_t num_routes =
      static_cast<size_t>(batch.routing.num_tokens) * static_cast<size_t>(batch.routing.top_k);
  counts_.assign(static_cast<size_t>(store_.num_experts()), 0);
  cursors_.resize(counts_.size());
  for (size_t i = 0; i < num_routes; ++i) {
    const int32_t expert = batch.routing.expert_ids[i];
    if (expert >= 0) ++counts_[static_cast<size_t>(expert)];
  }
  routed_.clear();
  groups_.clear();
  shard_groups_.clear();
  inner_floats_ = 0;
  prepared_inner_bytes_ = 0;
  for (size_t shard = 0; shard < store_.shards().size(); ++shard) {
    shard_groups_.push_back(groups_.size());
    if (store_.HoldsLayer(static_cast<int>(shard), batch.layer)) {
      AddShardGroups(static_cast<int>(shard), batch);
    }
  }
  shard_groups_.push_back(groups_.size());
}

void BatchExecutor::AddShardGroups(int shard, const LayerBatch& batch) {
  const ShardSpec& spec = store_.shards()[static_cast<size_t>(shard)];
  size_t next_row = routed_.size();
  for (int expert = spec.expert_begin; expert < spec.expert_end; ++expert) {
    const size_t count = counts_[static_cast<size_t>(expert)];
    cursors_[static_cast<size_t>(expert)] = next_row;
    if (count == 0) continue;
    ExpertGroup group{&store_.expert(shard, batch.layer, expert), next_row, static_cast<int>(count),
                      inner_floats_, prepared_inner_bytes_};
    inner_floats_ += count * group.inner_width();
    prepared_inner_bytes_ += count * InnerStride(group);
    next_row += count;
    groups_.push_back(group);
  }
  routed_.resize(next_row);
  const Routing& routing = batch.routing;
  const int32_t* id = routing.expert_ids;
  const float* weight = routing.weights;
  for (int32_t token = 0; token < routing.num_tokens; ++token) {
    for (int j = 0; j < routing.top_k; ++j, ++id, ++weight) {
      if (*id < spec.expert_begin || *id >= spec.expert_end) continue;
      routed_[cursors_[static_cast<size_t>(*id)]++] = {token, *weight};
    }
  }
}

void BatchExecutor::ForRowRuns(size_t count, const std::function<void(size_t, size_t)>& body) {
  const size_t runs = CeilDiv(count, size_t{kRowsPerTask});
  if (runs <= 1) {
    body(0, count);
    return;
  }
  arena_.ParallelFor(static_cast<int64_t>(runs), [&body, count](int64_t run) {
    const size_t begin = static_cast<size_t>(run) * kRowsPerTask;
    body(begin, std::min(begin + kRowsPerTask, count));
  });
}

void BatchExecutor::PrepareTokens(const TokenBatch& tokens) {
  const size_t num_tokens = static_cast<size_t>(tokens.num_tokens);
  tokens_.Reserve(num_tokens * HiddenStride());
  token_scales_.Reserve(num_tokens);
  ForRowRuns(num_tokens, [this, &tokens](size_t begin, size_t end) {
    const size_t hidden = static_cast<size_t>(tokens.hidden_size);
    PrepareRows(store_.method(), tokens.rows + begin * hidden, hidden,
                static_cast<int>(end - begin), tokens.hidden_size,
                tokens_.data() + begin * HiddenStride(), token_scales_.data() + begin);
  });
}

void BatchExecutor::GatherRows() {
  rows_.Reserve(routed_.size() * HiddenStride());
  row_scales_.Reserve(routed_.size());
  ForRowRuns(routed_.size(), [this](size_t begin, size_t end) {
    const size_t stride = HiddenStride();
    for (size_t i = begin; i < end; ++i) {
      const size_t token = static_cast<size_t>(routed_[i].token);
      std::memcpy(rows_.data() + i * stride, tokens_.data() + token * stride, stride);
      if (store_.method() == Method::kINT8) {
        row_scales_.data()[i] = token_scales_.data()[token];
      }
    }
  });
}

int BatchExecutor::TaskPanels(int64_t total_panels) const {
  const int64_t wanted_tasks = kTasksPerThread * arena_.num_threads();
  return static_cast<int>(std::clamp<int64_t>(total_panels / wanted_tasks, 1, kMaxTaskPanels));
}

void BatchExecutor::AddPanelTasks(size_t index, int num_panels, int width) {
  for (int begin = 0; begin < num_panels; begin += width) {
    tasks_.push_back({index, begin, std::min(begin + width, num_panels)});
  }
}

void BatchExecutor::RunGateAndUp() {
  inner_.Reserve(inner_floats_);
  int64_t total_panels = 0;
  for (const ExpertGroup& group : groups_) total_panels += group.expert->gate.num_panels();
  tasks_.clear();
  for (size_t i = 0; i < groups_.size(); ++i) {
    AddPanelTasks(i, groups_[i].expert->gate.num_panels(), TaskPanels(total_panels));
  }
  arena_.ParallelFor(static_cast<int64_t>(tasks_.size()),
                     [this](int64_t i) { GateAndUp(tasks_[static_cast<size_t>(i)]); });
}

void BatchExecutor::GateAndUp(const PanelTask& task) {
  alignas(64) float up[static_cast<size_t>(kTaskRows) * kTaskWidth];
  const ExpertGroup& group = groups_[task.index];
  const size_t inner_width = group.inner_width();
  const size_t columns = static_cast<size_t>(task.panel_end - task.panel_begin) * kPanelWidth;
  for (int begin = 0; begin < group.num_rows; begin += kTaskRows) {
    const size_t first = group.first_row + static_cast<size_t>(begin);
    const ActivationRows rows{rows_.data() + first * HiddenStride(), HiddenStride(),
                              row_scales_.data() + first,
                              std::min(kTaskRows, group.num_rows - begin)};
    float* gate = inner_.data() + group.inner_begin + static_cast<size_t>(begin) * inner_width +
                  static_cast<size_t>(task.panel_begin) * kPanelWidth;
    Gemm(kernels_, group.expert->gate, rows, task.panel_begin, task.panel_end, gate, inner_width);
    Gemm(kernels_, group.expert->up, rows, task.panel_begin, task.panel_end, up, columns);
    for (size_t r = 0; r < static_cast<size_t>(rows.rows); ++r) {
      SwiGlu(gate + r * inner_width, up + r * columns, columns);
    }
  }
}

void BatchExecutor::PrepareInner() {
  prepared_inner_.Reserve(prepared_inner_bytes_);
  inner_scales_.Reserve(routed_.size());
  ForRowRuns(routed_.size(), [this](size_t begin, size_t end) {
    // The last group that starts at or before `begin`.
    auto group = std::upper_bound(
        groups_.begin(), groups_.end(), begin,
        [](size_t row, const ExpertGroup& candidate) { return row < candidate.first_row; });
    for (size_t row = begin; row < end;) {
      const ExpertGroup& current = *(group - 1);
      const size_t skipped = row - current.first_row;
      const size_t group_end = current.first_row + static_cast<size_t>(current.num_rows);
      const size_t run_end = std::min(end, group_end);
      PrepareRows(store_.method(),
                  inner_.data() + current.inner_begin + skipped * current.inner_width(),
                  current.inner_width(), static_cast<int>(run_end - row), current.expert->down.k,
                  prepared_inner_.data() + current.prepared_begin + skipped * InnerStride(current),
                  inner_scales_.data() + row);
      row = run_end;
      ++group;
    }
  });
}

void BatchExecutor::RunDown(const TokenBatch& tokens, const std::vector<float*>& out) {
  const size_t num_tokens = static_cast<size_t>(tokens.num_tokens);
  if (num_tokens > 0) std::memset(not_finite_.Reserve(num_tokens), 0, num_tokens);
  const int panels = CeilDiv(tokens.hidden_size, kPanelWidth);
  tasks_.clear();
  for (size_t shard = 0; shard < out.size(); ++shard) {
    AddPanelTasks(shard, panels, TaskPanels(panels * static_cast<int64_t>(out.size())));
  }
  const auto body = [this, &tokens, &out](int64_t i) {
    const PanelTask& task = tasks_[static_cast<size_t>(i)];
    Down(task, tokens, out[task.index]);
  };
  // By reference: a std::function would allocate to hold three captures.
  arena_.ParallelFor(static_cast<int64_t>(tasks_.size()), std::cref(body));
}

// A task owns its columns of `out`, so experts are added to them in one order, by one thread.
void BatchExecutor::Down(const PanelTask& task, const TokenBatch& tokens, float* out) {
  const size_t hidden = static_cast<size_t>(tokens.hidden_size);
  const size_t first = static_cast<size_t>(task.panel_begin) * kPanelWidth;
  const size_t columns =
      std::min(static_cast<size_t>(task.panel_end) * kPanelWidth, hidden) - first;
  const size_t num_tokens = static_cast<size_t>(tokens.num_tokens);
  for (size_t t = 0; t < num_tokens; ++t) {
    std::fill_n(out + t * hidden + first, columns, 0.0f);
  }
  for (size_t g = shard_groups_[task.index]; g < shard_groups_[task.index + 1]; ++g) {
    AddWeighted(groups_[g], task, tokens.hidden_size, out);
  }
  for (size_t t = 0; t < num_tokens; ++t) {
    const float* row = out + t * hidden + first;
    if (std::all_of(row, row + columns, IsFinite)) continue;
    std::atomic_ref<uint8_t>(not_finite_.data()[t]).store(1, std::memory_order_relaxed);
  }
}

void BatchExecutor::AddWeighted(const ExpertGroup& group, const PanelTask& task, int hidden_size,
                                float* out) {
  alignas(64) float products[static_cast<size_t>(kTaskRows) * kTaskWidth];
  const size_t hidden = static_cast<size_t>(hidden_size);
  const size_t first = static_cast<size_t>(task.panel_begin) * kPanelWidth;
  const size_t width = static_cast<size_t>(task.panel_end - task.panel_begin) * kPanelWidth;
  const size_t columns = std::min(width, hidden - first);
  const size_t stride = InnerStride(group);
  for (int begin = 0; begin < group.num_rows; begin += kTaskRows) {
    const size_t skipped = static_cast<size_t>(begin);
    const ActivationRows rows{prepared_inner_.data() + group.prepared_begin + skipped * stride,
                              stride, inner_scales_.data() + group.first_row + skipped,
                              std::min(kTaskRows, group.num_rows - begin)};
    Gemm(kernels_, group.expert->down, rows, task.panel_begin, task.panel_end, products, width);
    for (size_t r = 0; r < static_cast<size_t>(rows.rows); ++r) {
      const RoutedRow& routed = routed_[group.first_row + skipped + r];
      float* sums = out + static_cast<size_t>(routed.token) * hidden + first;
      for (size_t c = 0; c < columns; ++c) sums[c] += routed.weight * products[r * width + c];
    }
  }
}

int BatchExecutor::CountNotFinite(int num_tokens) {
  const uint8_t* flags = not_finite_.data();
  return static_cast<int>(std::count(flags, flags + num_tokens, uint8_t{1}));
}

}  // namespace

std::unique_ptr<Executor> CreateExecutor(const ExpertStore& store, const KernelTable& kernels,
                                         NodeArena& arena) {
  return std::make_unique<BatchExecutor>(store, kernels, arena);
}

}  // namespace atelier
