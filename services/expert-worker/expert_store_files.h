#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "libs/base/log.h"
#include "libs/base/progress.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/checkpoint/packed_directory.h"
#include "libs/checkpoint/packed_file.h"
#include "libs/checkpoint/packed_file_writer.h"
#include "libs/kernels/expert_ffn.h"
#include "libs/numa/node_arena.h"
#include "services/expert-worker/expert_packing.h"
#include "services/expert-worker/shard_plan.h"

namespace atelier {

// What a shard needs of one layer, and which file is made where there is none that has it.
struct NeededFile {
  PackedKey key;              // of the file to make
  IntermediateRange columns;  // needed; the file may have more
  std::string fetch_flags;    // of `atelier fetch`, for what it is made of
};

// Relative errors |w - kept| / |w| of matrices.
struct PackingError {
  int num_matrices = 0;  // that were rounded
  double mean = 0;       // over them
  double worst = 0;
  std::string worst_matrix;  // "expert 12 down"

  void Add(double relative, const std::string& matrix);
  void Add(const PackingError& other);
};

// The packed files of one checkpoint and its methods in a store directory, shared by all processes
// that use it: each file is made by one of them, the others wait. Gate and up are kept whole, since
// a slice is a run of their panels (of a checkpoint that has only the slice, `atelier fetch`, the
// slice). Down has a file per slice: a slice of the whole is a part of
// every panel, which is read more slowly (and has other scales in some methods), so it is used
// only where nothing can be written, and said. Not thread-safe.
class ExpertStoreFiles {
 public:
  // Asked between files: true ends the work with CANCELLED.
  using Cancelled = std::function<bool()>;

  // NOT_FOUND when `store_directory` is not there: it may be a mount that is missing, so only the
  // folder inside it is created, and only to write. Borrows all but the string.
  static absl::StatusOr<ExpertStoreFiles> Open(const Checkpoint& checkpoint,
                                               const LayerMethods& methods,
                                               const std::string& store_directory,
                                               const PackedFileSystem& system,
                                               const Logger& logger);

  // Two for each layer of the plan: gate and up, then down.
  std::vector<NeededFile> Needs(const ShardPlan& plan) const;
  // Bytes that are still to be written for `needs`. RESOURCE_EXHAUSTED, with both sizes, when they
  // do not fit on the disk; errors of the system.
  absl::StatusOr<int64_t> CheckRoom(const std::vector<NeededFile>& needs);

  // Maps what is there and makes what is not, in the order of `needs`; adds their data bytes to
  // `progress`. Files that are damaged or of something else are named in the log and made anew.
  // Errors as PackedFileWriter's and FindExpert's.
  absl::StatusOr<std::vector<PackedFile>> FindOrMake(const std::vector<NeededFile>& needs,
                                                     NodeArena& arena, Progress& progress,
                                                     const Cancelled& cancelled);

  // Of the matrices that a file of this key has, what packing rounds. Reads and rounds them all, so
  // it takes about as long as packing. Errors as FindExpert's.
  absl::StatusOr<PackingError> MeasureError(const PackedKey& key, NodeArena& arena) const;

  const std::string& directory() const { return directory_; }
  int num_made() const { return num_made_; }  // files, by this object
  StoreMedium medium() const { return medium_; }

 private:
  ExpertStoreFiles(const Checkpoint& checkpoint, const LayerMethods& methods,
                   const PackedFileSystem& system, const Logger& logger)
      : checkpoint_(&checkpoint), methods_(&methods), system_(&system), logger_(&logger) {}

  PackedKey KeyFor(int layer, PackedPart part, ExpertRange experts,
                   IntermediateRange columns) const;
  // How a slice of down may lie in a file.
  enum class DownPanels { kTogether, kApart };
  // Of those that the directory lists, a file that has what is needed.
  absl::StatusOr<std::optional<PackedFile>> Find(const NeededFile& need, DownPanels down_panels);
  // Nullopt while another process makes it.
  absl::StatusOr<std::optional<PackedFile>> Make(const NeededFile& need, NodeArena& arena);
  absl::StatusOr<std::optional<PackedFile>> FindOrMakeOne(const NeededFile& need, NodeArena& arena);
  // Of all experts of the file; where they are packed to is left open.
  absl::StatusOr<std::vector<PackedPiece>> PiecesOf(const PackedKey& key) const;
  // Whether the checkpoint has all that the file is made of.
  bool CanMake(const PackedKey& key) const;
  absl::Status Pack(const NeededFile& need, NodeArena& arena, PackedFileWriter& writer) const;

  const Checkpoint* checkpoint_;
  const LayerMethods* methods_;
  const PackedFileSystem* system_;
  const Logger* logger_;
  std::string store_directory_;
  std::string directory_;
  StoreMedium medium_ = StoreMedium::kDisk;
  int num_made_ = 0;
  bool told_of_panels_apart_ = false;
  absl::flat_hash_set<std::string> rejected_;  // file names, each logged once
};

// The matrices of an expert of the plan in the files of its layer. `bf16_scales` are left alone.
ExpertView ViewInFiles(const ShardPlan& plan, const ExpertMethods& methods,
                       const PackedFile& gate_up, const PackedFile& down, int expert);

}  // namespace atelier
