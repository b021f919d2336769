#include "services/expert-worker/batch_plan.h"

#include <algorithm>

#include "libs/base/checked_math.h"
#include "services/expert-worker/expert_store.h"

namespace atelier {
namespace {

// A task is this part of a thread's share of what is left to cut: large ones first, and at the end
// nobody waits long for the last; …
constexpr int64_t kPartsPerThread = 3;
// … but not less than this part of its share of all: narrow strips read the rows more often.
constexpr int64_t kMaxPartsPerThread = 16;
// Multiply-adds that take about as long as reading one byte of weights. Only the shape of the cuts
// depends on it.
constexpr int64_t kMacsPerByte = 8;
// A thread that would have less than this to do (in bytes; some microseconds) is not woken.
constexpr int64_t kMinCostPerThread = 64 << 10;
constexpr int64_t kFloatBytes = sizeof(float);
// Blocks of rows that the kernels like: units but the last of an expert are multiples.
constexpr size_t kUnitRowMultiple = 8;

int64_t PanelCost(const PackedMatrix& matrix, int rows) {
  return static_cast<int64_t>(PanelBytes(matrix.method, matrix.k)) +
         int64_t{rows} * matrix.k * kPanelWidth / kMacsPerByte;
}

int64_t GateUpPanelCost(const RowUnit& unit) {
  return PanelCost(unit.expert->gate, unit.num_rows) + PanelCost(unit.expert->up, unit.num_rows);
}

int64_t DownPanelCost(const RowUnit& unit) { return PanelCost(unit.expert->down, unit.num_rows); }

// How many of `count` pieces of this cost make a task.
int PiecesOf(int64_t target, int64_t piece_cost, int64_t count) {
  return static_cast<int>(std::clamp<int64_t>(target / std::max<int64_t>(piece_cost, 1), 1, count));
}

// As many units as needed, of about the same size.
size_t UnitRows(size_t num_rows) {
  const size_t max_rows = BatchPlan::kMaxUnitRows;
  const size_t even = CeilDiv(num_rows, CeilDiv(num_rows, max_rows));
  return num_rows <= max_rows ? num_rows : RoundUp(even, kUnitRowMultiple);
}

}  // namespace

void BatchPlan::Make(const ExpertStore& store, const LayerBatch& batch, int num_threads) {
  CountRows(store, batch);
  rows_.clear();
  units_.clear();
  shard_units_.clear();
  inner_floats_ = 0;
  prepared_bytes_ = 0;
  const size_t num_shards = store.shards().size();
  const size_t routes =
      static_cast<size_t>(batch.routing.num_tokens) * static_cast<size_t>(batch.routing.top_k);
  route_rows_.assign(num_shards * routes, kNoRow);
  for (size_t shard = 0; shard < num_shards; ++shard) {
    shard_units_.push_back(units_.size());
    const int index = static_cast<int>(shard);
    if (!store.HoldsLayer(index, batch.layer)) continue;
    AddShard(store, index, batch);
    PlaceRows(batch, store.shards()[shard], shard * routes);
    for (size_t u = shard_units_.back(); u < units_.size(); ++u) FindConsecutive(units_[u]);
  }
  shard_units_.push_back(units_.size());
  cost_ = 0;
  CutGateUp(num_threads);
  CutDown(batch, num_threads);
  num_threads_ = static_cast<int>(std::clamp<int64_t>(cost_ / kMinCostPerThread, 1, num_threads));
}

void BatchPlan::CountRows(const ExpertStore& store, const LayerBatch& batch) {
  const size_t routes =
      static_cast<size_t>(batch.routing.num_tokens) * static_cast<size_t>(batch.routing.top_k);
  counts_.assign(static_cast<size_t>(store.num_experts()), 0);
  cursors_.resize(counts_.size());
  for (size_t i = 0; i < routes; ++i) {
    const int32_t expert = batch.routing.expert_ids[i];
    if (expert >= 0) ++counts_[static_cast<size_t>(expert)];
  }
}

void BatchPlan::AddShard(const ExpertStore& store, int shard, const LayerBatch& batch) {
  const ShardSpec& spec = store.shards()[static_cast<size_t>(shard)];
  size_t next_row = rows_.size();
  for (int expert = spec.expert_begin; expert < spec.expert_end; ++expert) {
    const size_t count = counts_[static_cast<size_t>(expert)];
    cursors_[static_cast<size_t>(expert)] = next_row;
    if (count == 0) continue;
    AddUnits(store.expert(shard, batch.layer, expert), next_row, count);
    next_row += count;
  }
  rows_.resize(next_row);
}

void BatchPlan::AddUnits(const ExpertView& expert, size_t first_row, size_t num_rows) {
  const size_t unit_rows = UnitRows(num_rows);
  const size_t width = static_cast<size_t>(expert.gate.num_panels()) * kPanelWidth;
  const size_t prepared_stride = ActivationRowBytes(expert.down.method, expert.down.k);
  for (size_t begin = 0; begin < num_rows; begin += unit_rows) {
    const size_t count = std::min(unit_rows, num_rows - begin);
    units_.push_back({&expert, first_row + begin, static_cast<int>(count), 0, false, inner_floats_,
                      prepared_bytes_});
    inner_floats_ += count * width;
    prepared_bytes_ += count * prepared_stride;
  }
}

void BatchPlan::PlaceRows(const LayerBatch& batch, const ShardSpec& spec, size_t route) {
  const Routing& routing = batch.routing;
  const int32_t* id = routing.expert_ids;
  const float* weight = routing.weights;
  for (int32_t token = 0; token < routing.num_tokens; ++token) {
    for (int j = 0; j < routing.top_k; ++j, ++id, ++weight, ++route) {
      if (*id < spec.expert_begin || *id >= spec.expert_end) continue;
      const size_t row = cursors_[static_cast<size_t>(*id)]++;
      rows_[row] = {token, *weight, route};
      route_rows_[route] = static_cast<int32_t>(row);
    }
  }
}

void BatchPlan::FindConsecutive(RowUnit& unit) {
  const auto begin = rows_.begin() + static_cast<std::ptrdiff_t>(unit.first_row);
  const auto end = begin + unit.num_rows;
  unit.consecutive = std::adjacent_find(begin, end, [](const RoutedRow& a, const RoutedRow& b) {
                       return b.token != a.token + 1;
                     }) == end;
  if (!unit.consecutive) return;
  for (auto row = begin; row != end; ++row) route_rows_[row->route] = kNoRow;
}

// Work of one kind while it is cut into tasks.
class BatchPlan::Cutter {
 public:
  Cutter(int64_t cost, int num_threads) : total_(cost), left_(cost), num_threads_(num_threads) {}

  int64_t TaskCost() const {
    if (num_threads_ == 1) return total_;
    return std::max(left_ / (kPartsPerThread * num_threads_),
                    total_ / (kMaxPartsPerThread * num_threads_));
  }
  void Take(int64_t cost) { left_ -= cost; }

 private:
  int64_t total_;
  int64_t left_;
  int num_threads_;
};

void BatchPlan::CutGateUp(int num_threads) {
  gate_up_tasks_.clear();
  int64_t cost = 0;
  for (const RowUnit& unit : units_) cost += unit.expert->gate.num_panels() * GateUpPanelCost(unit);
  cost_ += cost;
  Cutter cutter(cost, num_threads);
  for (size_t begin = 0, end = 0; begin < units_.size(); begin = end) {
    for (end = begin + 1; end < units_.size() && units_[end].expert == units_[begin].expert;) ++end;
    CutExpert(begin, end, cutter);
  }
}

// Strips of panels, and each strip into runs of units: the weights of a strip stay in a cache while
// its runs follow one another.
void BatchPlan::CutExpert(size_t unit_begin, size_t unit_end, Cutter& cutter) {
  const int64_t panel_cost = GateUpPanelCost(units_[unit_begin]);
  const int num_panels = units_[unit_begin].expert->gate.num_panels();
  const auto num_units = static_cast<int64_t>(unit_end - unit_begin);
  for (int panel = 0, width = 0; panel < num_panels; panel += width) {
    const int64_t target = cutter.TaskCost();
    width = PiecesOf(target, panel_cost, std::min(kMaxTaskPanels, num_panels - panel));
    const auto run = static_cast<size_t>(PiecesOf(target, width * panel_cost, num_units));
    for (size_t unit = unit_begin; unit < unit_end; unit += run) {
      const size_t run_end = std::min(unit + run, unit_end);
      gate_up_tasks_.push_back({unit, run_end, panel, panel + width});
      for (size_t u = unit; u < run_end; ++u) ++units_[u].num_tasks;
    }
    cutter.Take(width * panel_cost * num_units);
  }
}

void BatchPlan::CutDown(const LayerBatch& batch, int num_threads) {
  down_tasks_.clear();
  const int num_panels = CeilDiv(batch.tokens.hidden_size, kPanelWidth);
  // Clearing the sums and looking through them.
  const int64_t sums_cost = int64_t{batch.tokens.num_tokens} * kPanelWidth * kFloatBytes;
  const size_t num_shards = shard_units_.size() - 1;
  int64_t all_panels_cost = static_cast<int64_t>(num_shards) * sums_cost;
  for (const RowUnit& unit : units_) all_panels_cost += DownPanelCost(unit);
  cost_ += num_panels * all_panels_cost;
  Cutter cutter(num_panels * all_panels_cost, num_threads);
  for (size_t shard = 0; shard < num_shards; ++shard) {
    const size_t begin = shard_units_[shard], end = shard_units_[shard + 1];
    int64_t panel_cost = sums_cost;
    for (size_t u = begin; u < end; ++u) panel_cost += DownPanelCost(units_[u]);
    for (int panel = 0, width = 0; panel < num_panels; panel += width) {
      width = PiecesOf(cutter.TaskCost(), panel_cost, std::min(kMaxTaskPanels, num_panels - panel));
      down_tasks_.push_back({shard, begin, end, panel, panel + width});
      cutter.Take(width * panel_cost);
    }
  }
}

}  // namespace atelier
