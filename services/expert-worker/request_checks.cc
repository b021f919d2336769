#include "services/expert-worker/request_checks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "libs/base/quoted.h"
#include "libs/base/status_macros.h"
#include "libs/model/shard.h"
#include "libs/model/token_batch.h"

namespace atelier {
namespace {

absl::Status CheckIdentity(const ForwardRequest& request, const WorkerDescription& worker) {
  if (request.epoch != 0 && request.epoch != worker.epoch) {
    return absl::FailedPreconditionError(
        absl::StrCat("epoch=", request.epoch, ": this worker's is ", worker.epoch,
                     " (it was restarted, or holds other experts now; ask Describe "
                     "again)"));
  }
  if (!request.model_digest.empty() && request.model_digest != worker.model_digest) {
    return absl::FailedPreconditionError(absl::StrCat("model_digest=", Quoted(request.model_digest),
                                                      ": this worker holds the experts of ",
                                                      worker.model_digest));
  }
  return absl::OkStatus();
}

absl::Status CheckLayer(int layer, const WorkerDescription& worker) {
  const auto holds = [&](const ShardSpec& shard) {
    return std::binary_search(shard.layers.begin(), shard.layers.end(), layer);
  };
  if (std::any_of(worker.shards.begin(), worker.shards.end(), holds)) return absl::OkStatus();
  const std::string held = absl::StrJoin(
      worker.shards, "; ",
      [](std::string* out, const ShardSpec& shard) { absl::StrAppend(out, ShardName(shard)); });
  return absl::InvalidArgumentError(
      absl::StrCat("layer=", layer, ": this worker holds ", held.empty() ? "nothing" : held));
}

absl::Status CheckSizes(const ForwardRequest& request, const WorkerDescription& worker) {
  const int num_tokens = request.batch.num_tokens;
  if (num_tokens > worker.limits.max_tokens_per_call) {
    return absl::InvalidArgumentError(absl::StrCat(
        "num_tokens=", num_tokens,
        " exceeds max_tokens_per_call=", worker.limits.max_tokens_per_call, ": split the call"));
  }
  if (request.batch.hidden_size != worker.hidden_size) {
    return absl::InvalidArgumentError(absl::StrCat("hidden_size=", request.batch.hidden_size,
                                                   ": the model's is ", worker.hidden_size));
  }
  if (request.routing.top_k > worker.num_experts) {
    return absl::InvalidArgumentError(
        absl::StrCat("top_k=", request.routing.top_k, " exceeds num_experts=", worker.num_experts));
  }
  if (request.output_dtype != DType::kF32 && request.output_dtype != DType::kBF16) {
    return absl::InvalidArgumentError(absl::StrCat("output_dtype=", DTypeName(request.output_dtype),
                                                   ": sums are given as F32 or BF16"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRequest(const ForwardRequest& request, const WorkerDescription& worker) {
  ATELIER_RETURN_IF_ERROR(CheckIdentity(request, worker));
  ATELIER_RETURN_IF_ERROR(CheckLayer(request.layer, worker));
  ATELIER_RETURN_IF_ERROR(CheckSizes(request, worker));
  return ValidateRouting(request.batch, request.routing, worker.num_experts);
}

absl::Status CheckNotSkipped(const ForwardRequest& request, const WorkerDescription& worker,
                             const ExpertSet& skipped) {
  if (skipped.empty()) return absl::OkStatus();
  const int top_k = request.routing.top_k;
  for (int i = 0; i < request.batch.num_tokens * top_k; ++i) {
    const int expert = request.routing.expert_ids[i];
    if (expert < 0 || !skipped.Contains(request.layer, expert)) continue;
    const auto would_hold = [&](const ShardSpec& shard) {
      return shard.expert_begin <= expert && expert < shard.expert_end;
    };
    if (std::none_of(worker.shards.begin(), worker.shards.end(), would_hold)) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "expert_ids[", i / top_k, "][", i % top_k, "]=", expert, ": this worker leaves expert ",
        expert, " of layer ", request.layer,
        " to its frontends (--skip-experts): compute it there and send a negative id"));
  }
  return absl::OkStatus();
}

}  // namespace atelier
