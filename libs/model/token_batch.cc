#include "libs/model/token_batch.h"

#include "absl/strings/str_cat.h"

namespace atelier {
namespace {

absl::Status ValidateSizes(const TokenBatch& batch, const Routing& routing) {
  if (batch.num_tokens < 0 || batch.num_tokens != routing.num_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "num_tokens=", batch.num_tokens, " of the rows and num_tokens=", routing.num_tokens,
        " of the routing disagree"));
  }
  if (batch.hidden_size <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("hidden_size=", batch.hidden_size, " must be positive"));
  }
  if (routing.top_k <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("top_k=", routing.top_k, " must be positive"));
  }
  const bool quantized = batch.codes != nullptr && batch.scales != nullptr;
  const bool complete = (batch.num_quantized == batch.num_tokens || batch.rows != nullptr) &&
                        (batch.num_quantized == 0 || quantized) && routing.expert_ids != nullptr &&
                        routing.weights != nullptr;
  if (batch.num_tokens > 0 && !complete) {
    return absl::InvalidArgumentError("rows, expert_ids and weights must all be given");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateRouting(const TokenBatch& batch, const Routing& routing, int num_experts) {
  if (absl::Status sizes = ValidateSizes(batch, routing); !sizes.ok()) return sizes;
  const int32_t* id = routing.expert_ids;
  for (int token = 0; token < routing.num_tokens; ++token) {
    for (int position = 0; position < routing.top_k; ++position, ++id) {
      if (*id >= num_experts) {
        return absl::InvalidArgumentError(absl::StrCat("expert_ids: token ", token, ", position ",
                                                       position, " is ", *id,
                                                       ", but num_experts=", num_experts));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace atelier
