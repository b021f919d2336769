#include "tools/atelier/role_bytes.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "libs/base/check.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/expert_biases.h"
#include "libs/checkpoint/mapped_checkpoint.h"
#include "services/expert-worker/choose_method.h"
#include "services/expert-worker/expert_packing.h"

namespace atelier {
namespace {

// Turns bytes of mapped files into places in them.
class PlaceFinder {
 public:
  explicit PlaceFinder(const Checkpoint& checkpoint)
      : files_(checkpoint.Files()), bytes_(BytesOfDigest(checkpoint)) {
    std::sort(files_.begin(), files_.end(), [](const CheckpointFile& a, const CheckpointFile& b) {
      return std::less<>()(a.bytes.data(), b.bytes.data());
    });
  }

  void Add(absl::Span<const uint8_t> span) {
    if (span.empty()) return;
    const auto after = std::upper_bound(files_.begin(), files_.end(), span.data(),
                                        [](const uint8_t* at, const CheckpointFile& file) {
                                          return std::less<>()(at, file.bytes.data());
                                        });
    ATELIER_CHECK(after != files_.begin());
    const CheckpointFile& file = *(after - 1);
    const auto begin = static_cast<uint64_t>(span.data() - file.bytes.data());
    ATELIER_CHECK(begin + span.size() <= file.bytes.size());
    bytes_[file.name].Add({begin, begin + span.size()});
  }

  FileBytes Take() { return std::move(bytes_); }

 private:
  std::vector<CheckpointFile> files_;  // by address
  FileBytes bytes_;
};

absl::Status AddExpert(const Checkpoint& checkpoint, const ShardPlan& plan, size_t index,
                       int expert, PlaceFinder& places) {
  const int layer = plan.spec.layers[index];
  const ExpertMethods& methods = plan.methods[index];
  ATELIER_ASSIGN_OR_RETURN(const ExpertTensors tensors, FindExpert(checkpoint, layer, expert));
  for (const PackedPiece& piece :
       {GateOrUpPiece(tensors.gate, methods.gate, plan.columns, plan.hidden_size, nullptr),
        GateOrUpPiece(tensors.up, methods.up, plan.columns, plan.hidden_size, nullptr),
        DownPiece(tensors.down, methods.down, plan.columns, plan.hidden_size, nullptr)}) {
    for (const absl::Span<const uint8_t> span : BytesOf(piece)) places.Add(span);
  }
  return absl::OkStatus();
}

absl::Status AddBiases(const Checkpoint& checkpoint, int layer, int expert, PlaceFinder& places) {
  ATELIER_ASSIGN_OR_RETURN(const std::vector<TensorView> biases,
                           FindExpertBiasTensors(checkpoint, layer, expert));
  for (const TensorView& bias : biases) places.Add(bias.data);
  return absl::OkStatus();
}

}  // namespace

FileBytes BytesOfDigest(const Checkpoint& checkpoint) {
  FileBytes bytes;
  for (const CheckpointFile& file : checkpoint.Files()) {
    bytes[file.name] = DigestedBytes(file.bytes.size(), file.data_begin);
  }
  return bytes;
}

FileBytes BytesOfTensors(const Checkpoint& checkpoint, const std::vector<TensorView>& tensors) {
  PlaceFinder places(checkpoint);
  for (const TensorView& tensor : tensors) places.Add(tensor.data);
  return places.Take();
}

absl::StatusOr<FileBytes> BytesOfFrontend(const Checkpoint& checkpoint) {
  ATELIER_ASSIGN_OR_RETURN(const std::vector<absl::Span<const uint8_t>> spans,
                           FrontendBytes(checkpoint));
  PlaceFinder places(checkpoint);
  for (const absl::Span<const uint8_t> span : spans) places.Add(span);
  return places.Take();
}

absl::StatusOr<FileBytes> BytesOfWorker(const Checkpoint& checkpoint, const ShardSpec& shard,
                                        const ExpertSet& skipped) {
  ATELIER_ASSIGN_OR_RETURN(const LayerMethods methods, ChooseMethods(checkpoint, std::nullopt));
  ATELIER_ASSIGN_OR_RETURN(const std::vector<ShardPlan> plans,
                           PlanShards(checkpoint.config(), {shard}, methods));
  const ShardPlan& plan = plans[0];
  PlaceFinder places(checkpoint);
  for (size_t index = 0; index < plan.spec.layers.size(); ++index) {
    const int layer = plan.spec.layers[index];
    for (int expert = plan.spec.expert_begin; expert < plan.spec.expert_end; ++expert) {
      ATELIER_RETURN_IF_ERROR(AddBiases(checkpoint, layer, expert, places));
      if (skipped.Contains(layer, expert)) continue;
      ATELIER_RETURN_IF_ERROR(AddExpert(checkpoint, plan, index, expert, places));
    }
  }
  return places.Take();
}

void Add(const FileBytes& more, FileBytes& to) {
  for (const auto& [file, bytes] : more) {
    for (const ByteRange& range : bytes.ranges()) to[file].Add(range);
  }
}

uint64_t TotalBytes(const FileBytes& bytes) {
  uint64_t total = 0;
  for (const auto& [file, ranges] : bytes) total += ranges.bytes();
  return total;
}

}  // namespace atelier
