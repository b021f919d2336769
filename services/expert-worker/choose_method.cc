#include "services/expert-worker/choose_method.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "libs/base/status_macros.h"

namespace atelier {
namespace {

std::string FlagValue(Method method) { return absl::AsciiStrToLower(MethodName(method)); }

std::string Published(const ExpertMatrix& matrix) {
  return std::string(matrix.quant ? MethodName(matrix.quant->method)
                                  : DTypeName(matrix.tensor.dtype));
}

}  // namespace

absl::StatusOr<Method> ChooseMethod(const Checkpoint& checkpoint, std::optional<Method> requested) {
  const std::vector<bool>& is_moe = checkpoint.config().is_moe_layer;
  const auto first = std::find(is_moe.begin(), is_moe.end(), true);
  // PlanShards says that there is nothing to load.
  if (first == is_moe.end()) return requested.value_or(Method::kBF16);
  ATELIER_ASSIGN_OR_RETURN(
      const ExpertTensors expert,
      FindExpert(checkpoint, static_cast<int>(std::distance(is_moe.begin(), first)), 0));
  if (!expert.gate.quant) return requested.value_or(Method::kBF16);
  const Method published = expert.gate.quant->method;
  if (!requested || *requested == published) return published;
  return absl::InvalidArgumentError(absl::StrCat(
      "method=", FlagValue(*requested), ": ", checkpoint.directory(), " publishes its experts as ",
      MethodName(published), ", which would have to be rounded again: use --method=auto, or the ",
      "unquantised checkpoint of this model"));
}

absl::Status CheckPublishedAs(const ExpertMatrix& matrix, Method method, bool quantised) {
  const bool fits = quantised ? matrix.quant && matrix.quant->method == method : !matrix.quant;
  if (fits) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(matrix.tensor.file, ": tensor \"", matrix.tensor.name, "\" is published as ",
                   Published(matrix), " and other experts of the checkpoint ",
                   quantised ? absl::StrCat("as ", MethodName(method)) : "as floats",
                   ": a worker keeps all experts in one method in this version"));
}

}  // namespace atelier
