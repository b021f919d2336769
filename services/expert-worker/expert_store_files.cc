#include "services/expert-worker/expert_store_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/mapped_file.h"
#include "libs/kernels/pack.h"
#include "libs/kernels/packed_slice.h"

namespace atelier {
namespace {

constexpr size_t kDigestPrefix = 16;  // of its 64 characters: the header has all of them
constexpr absl::Duration kLockPoll = absl::Milliseconds(20);

bool Contains(IntermediateRange outer, IntermediateRange inner) {
  return outer.begin <= inner.begin && inner.end <= outer.end;
}

// Whether the columns can be used in place in a file that holds `held`. Down's panels lie apart
// there if it has more.
bool CanSlice(PackedPart part, Method down, IntermediateRange held, IntermediateRange columns) {
  if (!Contains(held, columns)) return false;
  const int begin = columns.begin - held.begin;
  if (part == PackedPart::kDown) return CanSliceInputs(down, held.size(), begin, columns.size());
  return begin % kPanelWidth == 0 && (columns.size() % kPanelWidth == 0 || columns.end == held.end);
}

ExpertMethods MethodsOfLayer(const LayerMethods& methods, int layer) {
  return methods[static_cast<size_t>(layer)];
}

}  // namespace

void PackingError::Add(double relative, const std::string& matrix) {
  Add(PackingError{1, relative, relative, matrix});
}

void PackingError::Add(const PackingError& other) {
  if (other.num_matrices == 0) return;
  const int total = num_matrices + other.num_matrices;
  mean = (mean * num_matrices + other.mean * other.num_matrices) / total;
  num_matrices = total;
  // A NaN is the worst of all.
  if (!(other.worst <= worst)) {
    worst = other.worst;
    worst_matrix = other.worst_matrix;
  }
}

absl::StatusOr<ExpertStoreFiles> ExpertStoreFiles::Open(const Checkpoint& checkpoint,
                                                        const LayerMethods& methods,
                                                        const std::string& store_directory,
                                                        const PackedFileSystem& system,
                                                        const Logger& logger) {
  ExpertStoreFiles files(checkpoint, methods, system, logger);
  const absl::StatusOr<FileSystemInfo> info = InspectFileSystem(store_directory);
  if (!info.ok()) {
    return absl::Status(info.status().code(),
                        absl::StrCat("--store-dir=", store_directory, ": ", info.status().message(),
                                     ": create the folder, or mount what belongs there"));
  }
  files.store_directory_ = store_directory;
  files.medium_ = info->medium;
  files.directory_ =
      absl::StrCat(store_directory, "/", checkpoint.digest().substr(0, kDigestPrefix), "-",
                   absl::AsciiStrToLower(MethodNames(checkpoint.config(), methods)), "-layout",
                   kPackedLayoutVersion);
  return files;
}

PackedKey ExpertStoreFiles::KeyFor(int layer, PackedPart part, ExpertRange experts,
                                   IntermediateRange columns) const {
  const ExpertMethods methods = MethodsOfLayer(*methods_, layer);
  const ModelConfig& config = checkpoint_->config();
  PackedKey key;
  key.checkpoint_digest = checkpoint_->digest();
  key.layout_version = kPackedLayoutVersion;
  key.hidden_size = config.hidden_size;
  key.intermediate_size = config.moe.intermediate_size;
  key.layer = layer;
  key.part = part;
  key.experts = experts;
  key.columns = columns;
  if (part == PackedPart::kDown) {
    key.methods = std::string(MethodName(methods.down));
    key.expert_bytes = BlockBytes(methods.down, key.hidden_size, columns.size());
  } else {
    key.methods = absl::StrCat(MethodName(methods.gate), ",", MethodName(methods.up));
    key.expert_bytes = BlockBytes(methods.gate, columns.size(), key.hidden_size) +
                       BlockBytes(methods.up, columns.size(), key.hidden_size);
  }
  return key;
}

std::vector<NeededFile> ExpertStoreFiles::Needs(const ShardPlan& plan) const {
  const ExpertRange experts{plan.spec.expert_begin, plan.spec.expert_end};
  const IntermediateRange whole{0, plan.intermediate_size};
  const std::string flags = FetchFlags(plan.spec, checkpoint_->config().moe.num_experts);
  std::vector<NeededFile> needs;
  for (const int layer : plan.spec.layers) {
    PackedKey gate_up = KeyFor(layer, PackedPart::kGateUp, experts, whole);
    if (!CanMake(gate_up)) gate_up = KeyFor(layer, PackedPart::kGateUp, experts, plan.columns);
    needs.push_back({gate_up, plan.columns, flags});
    needs.push_back({KeyFor(layer, PackedPart::kDown, experts, plan.columns), plan.columns, flags});
  }
  return needs;
}

absl::StatusOr<std::optional<PackedFile>> ExpertStoreFiles::Find(const NeededFile& need,
                                                                 DownPanels down_panels) {
  ATELIER_ASSIGN_OR_RETURN(const std::vector<PackedDirectoryEntry> entries,
                           ListPackedFiles(directory_));
  const Method down = MethodsOfLayer(*methods_, need.key.layer).down;
  for (const PackedDirectoryEntry& entry : entries) {
    const PackedFileName& holds = entry.holds;
    const bool fits = holds.layer == need.key.layer && holds.part == need.key.part &&
                      holds.experts.begin <= need.key.experts.begin &&
                      need.key.experts.end <= holds.experts.end &&
                      holds.experts.end <= checkpoint_->config().moe.num_experts &&
                      holds.columns.end <= need.key.intermediate_size &&
                      CanSlice(holds.part, down, holds.columns, need.columns);
    const bool apart =
        holds.part == PackedPart::kDown && holds.columns.size() > need.columns.size();
    if (!fits || (apart && down_panels == DownPanels::kTogether)) continue;
    const PackedKey key = KeyFor(holds.layer, holds.part, holds.experts, holds.columns);
    absl::StatusOr<PackedFile> file =
        PackedFile::Open(absl::StrCat(directory_, "/", entry.name), key);
    if (file.ok()) return std::optional<PackedFile>(*std::move(file));
    if (rejected_.insert(entry.name).second) {
      logger_->Warning("store_file_rejected", {Kv("reason", file.status().message())});
    }
  }
  return std::optional<PackedFile>();
}

namespace {

// What a file that is being made, or that a killed process left, takes of the disk already.
int64_t UnfinishedBytes(const std::string& directory, const PackedKey& key) {
  struct stat info = {};
  const std::string path = PartialName(absl::StrCat(directory, "/", key.FileName()));
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return 0;
  return std::min<int64_t>(info.st_blocks * 512, static_cast<int64_t>(key.file_bytes()));
}

}  // namespace

absl::StatusOr<int64_t> ExpertStoreFiles::CheckRoom(const std::vector<NeededFile>& needs) {
  int64_t missing = 0, unfinished = 0;
  for (const NeededFile& need : needs) {
    ATELIER_ASSIGN_OR_RETURN(const std::optional<PackedFile> found,
                             Find(need, DownPanels::kTogether));
    if (found) continue;
    missing += static_cast<int64_t>(need.key.file_bytes());
    unfinished += UnfinishedBytes(directory_, need.key);
  }
  ATELIER_ASSIGN_OR_RETURN(const FileSystemInfo info, InspectFileSystem(store_directory_));
  // What cannot be written says so itself, where it is tried.
  if (::access(store_directory_.c_str(), W_OK) != 0) return missing;
  if (!info.free_bytes || missing <= *info.free_bytes + unfinished) return missing;
  return absl::ResourceExhaustedError(
      absl::StrCat("--store-dir=", store_directory_, ": packed weights of ", missing - unfinished,
                   " bytes are still to be written and ", *info.free_bytes, " bytes are free"));
}

absl::StatusOr<std::vector<PackedPiece>> ExpertStoreFiles::PiecesOf(const PackedKey& key) const {
  const ExpertMethods methods = MethodsOfLayer(*methods_, key.layer);
  const int hidden = key.hidden_size;
  std::vector<PackedPiece> pieces;
  for (int expert = key.experts.begin; expert < key.experts.end; ++expert) {
    ATELIER_ASSIGN_OR_RETURN(const ExpertTensors tensors,
                             FindExpert(*checkpoint_, key.layer, expert));
    if (key.part == PackedPart::kDown) {
      pieces.push_back(DownPiece(tensors.down, methods.down, key.columns, hidden, nullptr));
      continue;
    }
    pieces.push_back(GateOrUpPiece(tensors.gate, methods.gate, key.columns, hidden, nullptr));
    pieces.push_back(GateOrUpPiece(tensors.up, methods.up, key.columns, hidden, nullptr));
  }
  return pieces;
}

bool ExpertStoreFiles::CanMake(const PackedKey& key) const {
  if (checkpoint_->IsWhole()) return true;
  const absl::StatusOr<std::vector<PackedPiece>> pieces = PiecesOf(key);
  return pieces.ok() && RequireFetched(*checkpoint_, *pieces, "").ok();
}

absl::Status ExpertStoreFiles::Pack(const NeededFile& need, NodeArena& arena,
                                    PackedFileWriter& writer) const {
  const PackedKey& key = need.key;
  ATELIER_ASSIGN_OR_RETURN(std::vector<PackedPiece> pieces, PiecesOf(key));
  ATELIER_RETURN_IF_ERROR(RequireFetched(*checkpoint_, pieces, need.fetch_flags));
  const size_t per_expert = pieces.size() / key.num_experts();
  for (size_t i = 0; i < pieces.size(); ++i) {
    const int expert = key.experts.begin + static_cast<int>(i / per_expert);
    const PackedPiece& before = pieces[i == 0 ? 0 : i - 1];
    pieces[i].block = i % per_expert == 0
                          ? writer.expert(expert)
                          : before.block + BlockBytes(before.method, before.n, before.k);
  }
  PackPieces(pieces, arena);
  arena.ParallelFor(static_cast<int64_t>(key.num_experts()), [&](int64_t i) {
    writer.FinishExpert(key.experts.begin + static_cast<int>(i));
  });
  return absl::OkStatus();
}

absl::StatusOr<PackingError> ExpertStoreFiles::MeasureError(const PackedKey& key,
                                                            NodeArena& arena) const {
  ATELIER_ASSIGN_OR_RETURN(const std::vector<PackedPiece> pieces, PiecesOf(key));
  std::vector<SquaredSums> sums(pieces.size());
  arena.ParallelFor(static_cast<int64_t>(pieces.size()), [&](int64_t i) {
    sums[static_cast<size_t>(i)] = PieceError(pieces[static_cast<size_t>(i)]);
    ReleasePages(pieces[static_cast<size_t>(i)].matrix.tensor.data);
  });
  const size_t per_expert = pieces.size() / key.num_experts();
  PackingError error;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const bool exact = pieces[i].matrix.quant || (pieces[i].method == Method::kBF16 &&
                                                  pieces[i].matrix.tensor.dtype == DType::kBF16);
    if (exact) continue;
    const absl::string_view matrix = key.part == PackedPart::kDown ? "down"
                                     : i % per_expert == 0         ? "gate"
                                                                   : "up";
    error.Add(sums[i].Relative(),
              absl::StrCat("expert ", key.experts.begin + i / per_expert, " ", matrix));
  }
  return error;
}

absl::StatusOr<std::optional<PackedFile>> ExpertStoreFiles::Make(const NeededFile& need,
                                                                 NodeArena& arena) {
  ATELIER_RETURN_IF_ERROR(MakeDirectory(directory_));
  ATELIER_ASSIGN_OR_RETURN(auto writer,
                           PackedFileWriter::TryCreate(directory_, need.key, *system_));
  if (writer == nullptr) return std::optional<PackedFile>();
  // Another process may have finished it before the lock was free.
  ATELIER_ASSIGN_OR_RETURN(std::optional<PackedFile> found, Find(need, DownPanels::kTogether));
  if (found) return found;
  ATELIER_RETURN_IF_ERROR(Pack(need, arena, *writer));
  ATELIER_RETURN_IF_ERROR(writer->Commit());
  ++num_made_;
  logger_->Info("store_file_packed",
                {Kv("file", writer->path()), Kv("bytes", need.key.file_bytes())});
  ATELIER_ASSIGN_OR_RETURN(PackedFile made, PackedFile::Open(writer->path(), need.key));
  return std::optional<PackedFile>(std::move(made));
}

absl::StatusOr<std::optional<PackedFile>> ExpertStoreFiles::FindOrMakeOne(const NeededFile& need,
                                                                          NodeArena& arena) {
  ATELIER_ASSIGN_OR_RETURN(std::optional<PackedFile> found, Find(need, DownPanels::kTogether));
  if (found) return found;
  absl::StatusOr<std::optional<PackedFile>> made = Make(need, arena);
  if (!absl::IsPermissionDenied(made.status())) return made;
  ATELIER_ASSIGN_OR_RETURN(found, Find(need, DownPanels::kApart));
  if (!found) return made;
  if (!std::exchange(told_of_panels_apart_, true)) {
    logger_->Warning(
        "store_slice_cut_in_place",
        {Kv("file", found->path()), Kv("reason", made.status().message()),
         Kv("advice", "decoding is slower: let atelier pack --shard-slice write this slice")});
  }
  return found;
}

absl::StatusOr<std::vector<PackedFile>> ExpertStoreFiles::FindOrMake(
    const std::vector<NeededFile>& needs, NodeArena& arena, Progress& progress,
    const Cancelled& cancelled) {
  std::vector<std::optional<PackedFile>> files(needs.size());
  bool told_of_waiting = false;
  for (size_t left = needs.size(); left > 0;) {
    const size_t before = left;
    for (size_t i = 0; i < needs.size(); ++i) {
      if (files[i]) continue;
      if (cancelled && cancelled()) return absl::CancelledError("loading was cancelled");
      ATELIER_ASSIGN_OR_RETURN(files[i], FindOrMakeOne(needs[i], arena));
      if (!files[i]) continue;
      --left;
      progress.Add(static_cast<int64_t>(needs[i].key.data_bytes()));
    }
    if (left == 0 || left < before) continue;
    if (!std::exchange(told_of_waiting, true)) {
      logger_->Info("store_waiting", {Kv("directory", directory_), Kv("files", left),
                                      Kv("reason", "another process packs them")});
    }
    absl::SleepFor(kLockPoll);
  }
  std::vector<PackedFile> all;
  for (std::optional<PackedFile>& file : files) all.push_back(*std::move(file));
  return all;
}

ExpertView ViewInFiles(const ShardPlan& plan, const ExpertMethods& methods,
                       const PackedFile& gate_up, const PackedFile& down, int expert) {
  const int hidden = plan.hidden_size, width = plan.columns.size();
  const IntermediateRange outputs = gate_up.key().columns, inputs = down.key().columns;
  const uint8_t* const gate = gate_up.expert(expert).data();
  const uint8_t* const up = gate + BlockBytes(methods.gate, outputs.size(), hidden);
  const auto slice = [&](Method method, const uint8_t* block) {
    return SliceOutputs(PackedMatrixAt(method, outputs.size(), hidden, block),
                        plan.columns.begin - outputs.begin, width);
  };
  ExpertView view;
  view.gate = slice(methods.gate, gate);
  view.up = slice(methods.up, up);
  view.down =
      SliceInputs(PackedMatrixAt(methods.down, hidden, inputs.size(), down.expert(expert).data()),
                  plan.columns.begin - inputs.begin, width);
  return view;
}

}  // namespace atelier
