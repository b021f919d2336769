#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/checkpoint/expert_biases.h"
#include "libs/checkpoint/gguf_source.h"
#include "libs/checkpoint/gguf_type.h"
#include "libs/checkpoint/quant_matrix.h"
#include "libs/checkpoint/tensor_list.h"

namespace atelier {
namespace {

// Some exporters keep all experts of a layer in two tensors.
bool HasFusedExperts(const Checkpoint& checkpoint, const std::vector<PromisedTensor>& fused) {
  return std::any_of(fused.begin(), fused.end(), [&](const PromisedTensor& tensor) {
    return checkpoint.Find(tensor.name).ok();
  });
}

absl::Status VerifyExperts(const Checkpoint& checkpoint, int layer) {
  const ModelConfig& config = checkpoint.config();
  for (int expert = 0; expert < config.moe.num_experts; ++expert) {
    ATELIER_RETURN_IF_ERROR(FindExpert(checkpoint, layer, expert).status());
    ATELIER_RETURN_IF_ERROR(FindExpertBiases(checkpoint, layer, expert).status());
  }
  return absl::OkStatus();
}

// One matrix out of a tensor that holds several, `offset` elements from its start.
TensorView Part(const TensorView& whole, size_t offset, std::vector<int64_t> shape) {
  size_t elements = 1;
  for (int64_t dim : shape) elements *= static_cast<size_t>(dim);
  const auto bytes_of = [&whole](size_t count) {
    if (whole.blocks == nullptr) return count * DTypeBytes(whole.dtype);
    return count / whole.blocks->elements * whole.blocks->bytes;
  };
  TensorView part = whole;
  part.shape = std::move(shape);
  part.data = whole.data.subspan(bytes_of(offset), bytes_of(elements));
  return part;
}

// A readable tensor [rows, columns] as what the kernels take.
PublishedMatrix MatrixOf(TensorView tensor) {
  PublishedMatrix matrix;
  matrix.bytes = {{tensor.data, MatrixBytes::Lines::kRows, static_cast<size_t>(tensor.shape[0])}};
  if (tensor.blocks != nullptr) {
    matrix.quant = QuantMatrix{*tensor.blocks->method, false,
                               std::make_shared<GgufSource>(*tensor.blocks, tensor.data.data(),
                                                            static_cast<size_t>(tensor.shape[1]))};
  }
  matrix.tensor = std::move(tensor);
  return matrix;
}

// The tensors of all experts of a layer; gate and up together or each alone.
struct FusedExperts {
  TensorView gate;
  TensorView up;
  TensorView down;
  bool gate_up = false;  // both are the tensor of both: of every expert gate's rows, then up's
};

absl::StatusOr<FusedExperts> FindFusedExperts(const Checkpoint& checkpoint,
                                              const std::vector<PromisedTensor>& fused,
                                              const std::string& prefix) {
  const int64_t experts = checkpoint.config().moe.num_experts;
  const int64_t intermediate = checkpoint.config().moe.intermediate_size;
  const int64_t hidden = checkpoint.config().hidden_size;
  const std::string gate = absl::StrCat(prefix, "gate_proj");
  FusedExperts tensors;
  tensors.gate_up = !checkpoint.Find(gate).ok();
  if (tensors.gate_up && checkpoint.config().moe.gate_up_alternate) {
    return absl::UnimplementedError(absl::StrCat(
        checkpoint.directory(), ": the experts of model_type=", checkpoint.config().model_type,
        " as floats, inputs by outputs with gate and up alternating, are not supported by this "
        "build: use the checkpoint with blocks and scales (MXFP4), or a GGUF"));
  }
  ATELIER_ASSIGN_OR_RETURN(tensors.down, checkpoint.RequireReadable(fused[1].name, fused[1].shape));
  if (tensors.gate_up) {
    ATELIER_ASSIGN_OR_RETURN(tensors.gate,
                             checkpoint.RequireReadable(fused[0].name, fused[0].shape));
    tensors.up = tensors.gate;
    return tensors;
  }
  const std::vector<int64_t> shape = {experts, intermediate, hidden};
  ATELIER_ASSIGN_OR_RETURN(tensors.gate, checkpoint.RequireReadable(gate, shape));
  ATELIER_ASSIGN_OR_RETURN(tensors.up,
                           checkpoint.RequireReadable(absl::StrCat(prefix, "up_proj"), shape));
  return tensors;
}

absl::StatusOr<ExpertTensors> FindFusedExpert(const Checkpoint& checkpoint,
                                              const std::vector<PromisedTensor>& fused,
                                              const std::string& prefix, size_t expert) {
  ATELIER_ASSIGN_OR_RETURN(const FusedExperts tensors, FindFusedExperts(checkpoint, fused, prefix));
  const int64_t intermediate = checkpoint.config().moe.intermediate_size;
  const int64_t hidden = checkpoint.config().hidden_size;
  const auto matrix = static_cast<size_t>(intermediate * hidden);
  const size_t gate = (tensors.gate_up ? 2 * expert : expert) * matrix;
  const size_t up = tensors.gate_up ? gate + matrix : gate;
  return ExpertTensors{
      .gate = MatrixOf(Part(tensors.gate, gate, {intermediate, hidden})),
      .up = MatrixOf(Part(tensors.up, up, {intermediate, hidden})),
      .down = MatrixOf(Part(tensors.down, expert * matrix, {hidden, intermediate}))};
}

absl::StatusOr<PublishedMatrix> FindPromised(const Checkpoint& checkpoint,
                                             const PromisedTensor& matrix) {
  return FindMatrix(checkpoint, matrix.name, static_cast<int>(matrix.shape[0]),
                    static_cast<int>(matrix.shape[1]));
}

}  // namespace

absl::Status VerifyTensors(const Checkpoint& checkpoint, Role role) {
  const ModelConfig& config = checkpoint.config();
  if (role != Role::kWorker) {
    ATELIER_RETURN_IF_ERROR(FrontendBytes(checkpoint).status());
  }
  if (role == Role::kFrontend) return absl::OkStatus();
  if (role == Role::kWorker) ATELIER_RETURN_IF_ERROR(config.CheckHasExperts());
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (!config.is_moe_layer[static_cast<size_t>(layer)]) continue;
    ATELIER_RETURN_IF_ERROR(VerifyExperts(checkpoint, layer));
  }
  return absl::OkStatus();
}

absl::StatusOr<PublishedMatrix> FindMatrix(const Checkpoint& checkpoint, const std::string& name,
                                           int rows, int columns) {
  const absl::string_view module = absl::StripSuffix(name, ".weight");
  if (HasQuantMatrix(checkpoint, module)) {
    return FindQuantMatrix(checkpoint, module, rows, columns);
  }
  ATELIER_ASSIGN_OR_RETURN(TensorView tensor, checkpoint.RequireReadable(name, {rows, columns}));
  return MatrixOf(std::move(tensor));
}

absl::StatusOr<std::vector<absl::Span<const uint8_t>>> FrontendBytes(const Checkpoint& checkpoint) {
  ATELIER_RETURN_IF_ERROR(checkpoint.config().CheckFrontend());
  std::vector<absl::Span<const uint8_t>> spans;
  for (const PromisedTensor& promised : FrontendTensors(checkpoint.config())) {
    if (promised.shape.size() == 2) {
      ATELIER_ASSIGN_OR_RETURN(const PublishedMatrix matrix, FindPromised(checkpoint, promised));
      for (const MatrixBytes& bytes : matrix.bytes) spans.push_back(bytes.data);
      continue;
    }
    ATELIER_ASSIGN_OR_RETURN(const TensorView tensor,
                             checkpoint.RequireReadable(promised.name, promised.shape));
    spans.push_back(tensor.data);
  }
  return spans;
}

absl::Status RequireFrontendFetched(const Checkpoint& checkpoint) {
  if (checkpoint.IsWhole()) return absl::OkStatus();
  ATELIER_ASSIGN_OR_RETURN(const auto spans, FrontendBytes(checkpoint));
  for (const absl::Span<const uint8_t> bytes : spans) {
    ATELIER_RETURN_IF_ERROR(checkpoint.RequireFetched(bytes, "--role=frontend"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ExpertTensors> FindExpert(const Checkpoint& checkpoint, int layer, int expert) {
  const ModelConfig& config = checkpoint.config();
  if (layer < 0 || layer >= config.num_layers || !config.is_moe_layer[static_cast<size_t>(layer)]) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", layer, " is no layer with experts of ", checkpoint.directory()));
  }
  if (expert < 0 || expert >= config.moe.num_experts) {
    return absl::InvalidArgumentError(
        absl::StrCat("expert ", expert, " must be from 0 to ", config.moe.num_experts - 1));
  }
  const std::string layer_experts = absl::StrCat(LayerPrefix(layer), "mlp.experts.");
  if (HasFusedQuantMatrices(checkpoint, layer_experts)) {
    return FindFusedQuantExpert(checkpoint, layer_experts, expert);
  }
  const std::vector<PromisedTensor> fused = ExpertTensorsFused(config, layer);
  if (HasFusedExperts(checkpoint, fused)) {
    return FindFusedExpert(checkpoint, fused, layer_experts, static_cast<size_t>(expert));
  }
  const std::vector<PromisedTensor> alone = ExpertTensorsAlone(config, layer, expert);
  ExpertTensors tensors;
  ATELIER_ASSIGN_OR_RETURN(tensors.gate, FindPromised(checkpoint, alone[0]));
  ATELIER_ASSIGN_OR_RETURN(tensors.up, FindPromised(checkpoint, alone[1]));
  ATELIER_ASSIGN_OR_RETURN(tensors.down, FindPromised(checkpoint, alone[2]));
  return tensors;
}

}  // namespace atelier
