#include "services/expert-worker/expert_packing.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "libs/base/checked_math.h"
#include "libs/base/status_macros.h"
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

PackedPiece GateOrUpPiece(const PublishedMatrix& matrix, Method method, IntermediateRange columns,
                          int hidden_size, uint8_t* block) {
  return {matrix, method, columns.begin, 0, columns.size(), hidden_size, block};
}

PackedPiece DownPiece(const PublishedMatrix& matrix, Method method, IntermediateRange columns,
                      int hidden_size, uint8_t* block) {
  return {matrix, method, 0, columns.begin, hidden_size, columns.size(), block};
}

std::vector<absl::Span<const uint8_t>> BytesOf(const PackedPiece& piece) {
  return BytesOfPart(piece.matrix.bytes, {piece.row, piece.column, piece.n, piece.k});
}

absl::Status RequireFetched(const Checkpoint& checkpoint, const std::vector<PackedPiece>& pieces,
                            const std::string& role_flags) {
  for (const PackedPiece& piece : pieces) {
    for (const absl::Span<const uint8_t> bytes : BytesOf(piece)) {
      ATELIER_RETURN_IF_ERROR(checkpoint.RequireFetched(bytes, role_flags));
    }
  }
  return absl::OkStatus();
}

std::string FetchFlags(const ShardSpec& shard, int num_experts) {
  std::string flags =
      absl::StrCat("--role=worker --shard-slice=", shard.slice_index, "/", shard.slice_count);
  if (shard.expert_begin == 0 && shard.expert_end == num_experts) return flags;
  return absl::StrCat(flags, " --experts=", shard.expert_begin, "-", shard.expert_end - 1);
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
  for (const PackedPiece& piece : pieces) {
    for (const MatrixBytes& bytes : piece.matrix.bytes) ReleasePages(bytes.data);
  }
}

SquaredSums PieceError(const PackedPiece& piece) {
  if (piece.matrix.quant) return {};
  return QuantizeError(FloatsOf(piece), piece.method, piece.k, 0, piece.n);
}

bool HasBf16Scales(const PublishedMatrix& matrix) {
  return matrix.quant && matrix.quant->bf16_scales;
}

}  // namespace atelier
