#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "libs/kernels/expert_ffn.h"
#include "services/expert-worker/layer_batch.h"

namespace atelier {

class ExpertStore;
struct ShardSpec;

// A row of a token at one of its experts.
struct RoutedRow {
  int32_t token;
  float weight;
  size_t route;  // its place in BatchPlan::route_rows()
};

// Rows of one expert of one shard that go through its three matrices together.
struct RowUnit {
  const ExpertView* expert;
  size_t first_row;       // index of its first RoutedRow
  int num_rows;           // 1 … kMaxUnitRows
  int num_tasks;          // gate/up tasks that it takes part in
  bool consecutive;       // its rows are consecutive tokens: used where they lie, not copied
  size_t inner_begin;     // floats before its first row in the intermediate rows of all units
  size_t prepared_begin;  // bytes before it in those, prepared for down
};

// Panels of gate and of up, for consecutive units of one expert.
struct GateUpTask {
  size_t unit_begin;
  size_t unit_end;
  int panel_begin;
  int panel_end;
};

// Columns of a shard's sums, as panels of down. One thread at a time adds its units, in their
// order.
struct DownTask {
  size_t shard;
  size_t unit_begin;
  size_t unit_end;
  int panel_begin;
  int panel_end;
};

// Which rows a batch brings to which experts, and how the work is cut so that every thread has its
// share whether one expert has all rows or many have one. Cuts follow cost (the bytes of a panel
// and the multiply-adds of the rows) and become finer towards the end. Make costs O(routes + tasks)
// and allocates only when a batch is larger than any before. Thread-compatible.
class BatchPlan {
 public:
  // Of a unit: what a task computes at once stays in the L1/L2 caches.
  static constexpr int kMaxUnitRows = 64;
  // Of a task, for the same reason.
  static constexpr int kMaxTaskPanels = 8;
  // Of route_row: not here, or not to be copied.
  static constexpr int32_t kNoRow = -1;

  // REQUIRES: as Executor::Forward.
  void Make(const ExpertStore& store, const LayerBatch& batch, int num_threads);

  const std::vector<RoutedRow>& rows() const { return rows_; }  // shard by shard, ascending
  const std::vector<RowUnit>& units() const { return units_; }  // expert, then by token
  const std::vector<GateUpTask>& gate_up_tasks() const { return gate_up_tasks_; }
  const std::vector<DownTask>& down_tasks() const { return down_tasks_; }
  // [shard, token, top_k]: the RoutedRow to copy the token to, or kNoRow.
  const std::vector<int32_t>& route_rows() const { return route_rows_; }
  size_t inner_floats() const { return inner_floats_; }
  size_t prepared_bytes() const { return prepared_bytes_; }
  // Threads that have enough to do to be worth waking: 1 … num_threads.
  int num_threads() const { return num_threads_; }

 private:
  class Cutter;

  void CountRows(const ExpertStore& store, const LayerBatch& batch);
  void AddShard(const ExpertStore& store, int shard, const LayerBatch& batch);
  void AddUnits(const ExpertView& expert, size_t first_row, size_t num_rows);
  void PlaceRows(const LayerBatch& batch, const ShardSpec& spec, size_t route);
  void FindConsecutive(RowUnit& unit);
  void CutGateUp(int num_threads);
  void CutExpert(size_t unit_begin, size_t unit_end, Cutter& cutter);
  void CutDown(const LayerBatch& batch, int num_threads);

  std::vector<size_t> counts_;   // rows of each expert of the model in this batch
  std::vector<size_t> cursors_;  // next RoutedRow of each expert while they are placed
  std::vector<RoutedRow> rows_;
  std::vector<RowUnit> units_;
  std::vector<size_t> shard_units_;  // first unit of each shard, and their number at the end
  std::vector<int32_t> route_rows_;
  std::vector<GateUpTask> gate_up_tasks_;
  std::vector<DownTask> down_tasks_;
  size_t inner_floats_ = 0;
  size_t prepared_bytes_ = 0;
  int64_t cost_ = 0;
  int num_threads_ = 1;
};

}  // namespace atelier
