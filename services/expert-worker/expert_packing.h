#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/kernels/quantize_error.h"
#include "libs/model/shard.h"
#include "libs/numa/node_arena.h"
#include "services/expert-worker/shard_plan.h"

namespace atelier {

// The part of a published matrix that begins at (row, column), packed as [n, k] into `block` of
// PackedMatrixBytes.
struct PackedPiece {
  PublishedMatrix matrix;
  Method method = Method::kBF16;
  int row = 0;
  int column = 0;
  int n = 0;
  int k = 0;
  uint8_t* block = nullptr;
};

// Columns of the intermediate dimension: rows of gate and up [I, H]; columns of down [H, I].
PackedPiece GateOrUpPiece(const PublishedMatrix& matrix, Method method, IntermediateRange columns,
                          int hidden_size, uint8_t* block);
PackedPiece DownPiece(const PublishedMatrix& matrix, Method method, IntermediateRange columns,
                      int hidden_size, uint8_t* block);

// Bytes of the checkpoint's files that packing the piece reads.
std::vector<absl::Span<const uint8_t>> BytesOf(const PackedPiece& piece);
// FAILED_PRECONDITION, as Checkpoint::RequireFetched, where some of them were not fetched.
absl::Status RequireFetched(const Checkpoint& checkpoint, const std::vector<PackedPiece>& pieces,
                            const std::string& role_flags);
// The flags of `atelier fetch` that fetch what a worker with this shard reads.
std::string FetchFlags(const ShardSpec& shard, int num_experts);

// Packs all pieces on the arena's threads, which share even a single one; then lets go of the pages
// of the checkpoint that they were read from. REQUIRES: all their bytes were fetched.
void PackPieces(const std::vector<PackedPiece>& pieces, NodeArena& arena);

// What packing the piece rounds: none for published codes.
SquaredSums PieceError(const PackedPiece& piece);

bool HasBf16Scales(const PublishedMatrix& matrix);

}  // namespace atelier
