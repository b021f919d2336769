#include "services/expert-worker/choose_method.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "libs/base/status_macros.h"

namespace atelier {
namespace {

std::string FlagValue(Method method) { return absl::AsciiStrToLower(MethodName(method)); }

std::string Published(const PublishedMatrix& matrix) {
  return std::string(matrix.quant ? MethodName(matrix.quant->method)
                                  : DTypeName(matrix.tensor.dtype));
}

absl::StatusOr<Method> MethodOf(const Checkpoint& checkpoint, const PublishedMatrix& matrix,
                                std::optional<Method> requested) {
  if (!matrix.quant) return requested.value_or(Method::kBF16);
  const Method published = matrix.quant->method;
  if (!requested || *requested == published) return published;
  return absl::InvalidArgumentError(absl::StrCat(
      "method=", FlagValue(*requested), ": ", checkpoint.directory(), " publishes experts (tensor ",
      matrix.tensor.name, ") as ", MethodName(published), ", which would have to be rounded ",
      "again: use --method=auto, or the unquantised checkpoint of this model"));
}

absl::Status CheckAlike(const PublishedMatrix& first, const PublishedMatrix& other) {
  const bool alike =
      first.quant ? other.quant && other.quant->method == first.quant->method : !other.quant;
  if (alike) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(other.tensor.file, ": tensor \"", other.tensor.name, "\" is published as ",
                   Published(other), " and expert 0 of the layer as ", Published(first),
                   ": a worker keeps all experts of a layer in one method in this version"));
}

}  // namespace

absl::StatusOr<LayerMethods> ChooseMethods(const Checkpoint& checkpoint,
                                           std::optional<Method> requested) {
  const ModelConfig& config = checkpoint.config();
  LayerMethods methods(static_cast<size_t>(config.num_layers));
  for (size_t layer = 0; layer < methods.size(); ++layer) {
    if (!config.is_moe_layer[layer]) continue;
    ATELIER_ASSIGN_OR_RETURN(const ExpertTensors expert,
                             FindExpert(checkpoint, static_cast<int>(layer), 0));
    ATELIER_ASSIGN_OR_RETURN(methods[layer].gate, MethodOf(checkpoint, expert.gate, requested));
    ATELIER_ASSIGN_OR_RETURN(methods[layer].up, MethodOf(checkpoint, expert.up, requested));
    ATELIER_ASSIGN_OR_RETURN(methods[layer].down, MethodOf(checkpoint, expert.down, requested));
  }
  return methods;
}

absl::Status CheckPublishedAlike(const ExpertTensors& first, const ExpertTensors& expert) {
  ATELIER_RETURN_IF_ERROR(CheckAlike(first.gate, expert.gate));
  ATELIER_RETURN_IF_ERROR(CheckAlike(first.up, expert.up));
  return CheckAlike(first.down, expert.down);
}

}  // namespace atelier
