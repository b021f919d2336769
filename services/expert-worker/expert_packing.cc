#include "services/expert-worker/expert_packing.h"

#include <algorithm>

#include "libs/base/checked_math.h"
#include "libs/checkpoint/mapped_file.h"
#include "libs/kernels/block_pack.h"
#include "libs/kernels/pack.h"

namespace atelier {
namespace {

// Panels that one task packs: enough work to be worth a task, few enough to balance one large
// matrix over many threads.
constexpr int kPanelsPerTask = 16;

struct PackTask {
  const PackedPiece* piece = nullptr;
  int panel_begin = 0;
  int panel_end = 0;
};

// REQUIRES: not quantised.
WeightSource FloatsOf(const PackedPiece& piece) {
  const TensorView& tensor = piece.matrix.tensor;
  const size_t row_stride = static_cast<size_t>(tensor.shape[1]);
  const size_t first =
      static_cast<size_t>(piece.row) * row_stride + static_cast<size_t>(piece.column);
  return {tensor.dtype, tensor.data.data() + first * DTypeBytes(tensor.dtype), row_stride};
}

void Run(const PackTask& task) {
  const PackedPiece& piece = *task.piece;
  if (piece.matrix.quant) {
    const QuantSlice codes(*piece.matrix.quant->source, piece.row, piece.column);
    PackQuantMatrix(codes, piece.method, piece.n, piece.k, task.panel_begin, task.panel_end,
                    piece.block);
    return;
  }
  PackMatrix(FloatsOf(piece), piece.method, piece.n, piece.k, task.panel_begin, task.panel_end,
             piece.block);
}

}  // namespace

PackedPiece GateOrUpPiece(const ExpertMatrix& matrix, Method method, IntermediateRange columns,
                          int hidden_size, uint8_t* block) {
  return {matrix, method, columns.begin, 0, columns.size(), hidden_size, block};
}

PackedPiece DownPiece(const ExpertMatrix& matrix, Method method, IntermediateRange columns,
                      int hidden_size, uint8_t* block) {
  return {matrix, method, 0, columns.begin, hidden_size, columns.size(), block};
}

void PackPieces(const std::vector<PackedPiece>& pieces, NodeArena& arena) {
  std::vector<PackTask> tasks;
  for (const PackedPiece& piece : pieces) {
    const int num_panels = CeilDiv(piece.n, kPanelWidth);
    for (int panel = 0; panel < num_panels; panel += kPanelsPerTask) {
      tasks.push_back({&piece, panel, std::min(panel + kPanelsPerTask, num_panels)});
    }
  }
  arena.ParallelFor(static_cast<int64_t>(tasks.size()),
                    [&](int64_t i) { Run(tasks[static_cast<size_t>(i)]); });
  // Mapped pages count as this process's memory: all layers' would make twice the weights.
  for (const PackedPiece& piece : pieces) ReleasePages(piece.matrix.tensor.data);
}

SquaredSums PieceError(const PackedPiece& piece) {
  if (piece.matrix.quant) return {};
  return QuantizeError(FloatsOf(piece), piece.method, piece.k, 0, piece.n);
}

bool HasBf16Scales(const ExpertMatrix& matrix) { return matrix.quant && matrix.quant->bf16_scales; }

}  // namespace atelier
