#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/base/status_macros.h"
#include "libs/transport/codec.h"

namespace atelier {
namespace {

constexpr uint32_t kMaxInt = static_cast<uint32_t>(std::numeric_limits<int32_t>::max());
// Far above any model and deployment, low enough that checking coverage stays cheap.
constexpr int kMaxShards = 4096;
constexpr uint32_t kMaxExperts = 65'536;
constexpr uint32_t kMaxSlices = 65'536;

v1::WorkerState ToWire(WorkerState state) {
  switch (state) {
    case WorkerState::kStarting:
      return v1::WORKER_STATE_STARTING;
    case WorkerState::kLoading:
      return v1::WORKER_STATE_LOADING;
    case WorkerState::kServing:
      return v1::WORKER_STATE_SERVING;
    case WorkerState::kDraining:
      return v1::WORKER_STATE_DRAINING;
    case WorkerState::kStopped:
      return v1::WORKER_STATE_STOPPED;
  }
  return v1::WORKER_STATE_UNSPECIFIED;
}

absl::StatusOr<WorkerState> FromWire(v1::WorkerState state) {
  switch (state) {
    case v1::WORKER_STATE_STARTING:
      return WorkerState::kStarting;
    case v1::WORKER_STATE_LOADING:
      return WorkerState::kLoading;
    case v1::WORKER_STATE_SERVING:
      return WorkerState::kServing;
    case v1::WORKER_STATE_DRAINING:
      return WorkerState::kDraining;
    case v1::WORKER_STATE_STOPPED:
      return WorkerState::kStopped;
    default:
      return absl::InternalError(
          absl::StrCat("state=", static_cast<int>(state), " is no state of a worker"));
  }
}

absl::StatusOr<int> ToInt(absl::string_view field, uint64_t value) {
  if (value <= kMaxInt) return static_cast<int>(value);
  return absl::InternalError(absl::StrCat(field, "=", value, " exceeds ", kMaxInt));
}

absl::StatusOr<std::vector<int>> DecodeLayers(const v1::Shard& wire) {
  std::vector<int> layers;
  for (const uint32_t layer : wire.layers()) {
    ATELIER_ASSIGN_OR_RETURN(const int value, ToInt("shards.layers", layer));
    if (!layers.empty() && value <= layers.back()) {
      return absl::InternalError(
          absl::StrCat("shards.layers is not ascending: ", value, " after ", layers.back()));
    }
    layers.push_back(value);
  }
  return layers;
}

absl::StatusOr<ShardSpec> DecodeShard(const v1::Shard& wire, uint32_t num_experts) {
  if (wire.expert_begin() >= wire.expert_end() || wire.expert_end() > num_experts) {
    return absl::InternalError(absl::StrCat("shards.expert_begin=", wire.expert_begin(),
                                            ", expert_end=", wire.expert_end(),
                                            " is no range of num_experts=", num_experts));
  }
  if (wire.slice_index() >= wire.slice_count() || wire.slice_count() > kMaxSlices) {
    return absl::InternalError(absl::StrCat("shards.slice_index=", wire.slice_index(),
                                            " is outside slice_count=", wire.slice_count(),
                                            " or that exceeds ", kMaxSlices));
  }
  ATELIER_ASSIGN_OR_RETURN(std::vector<int> layers, DecodeLayers(wire));
  return ShardSpec{std::move(layers), static_cast<int>(wire.expert_begin()),
                   static_cast<int>(wire.expert_end()), static_cast<int>(wire.slice_index()),
                   static_cast<int>(wire.slice_count())};
}

absl::StatusOr<std::vector<ShardSpec>> DecodeWireShards(const WireShards& shards,
                                                        uint32_t num_experts) {
  if (shards.size() > kMaxShards) {
    return absl::InternalError(
        absl::StrCat("shards has ", shards.size(), " entries, more than ", kMaxShards));
  }
  std::vector<ShardSpec> result;
  for (const v1::Shard& shard : shards) {
    ATELIER_ASSIGN_OR_RETURN(ShardSpec decoded, DecodeShard(shard, num_experts));
    result.push_back(std::move(decoded));
  }
  return result;
}

// The first that we know.
ActivationForm DecodeQuantizedRows(const v1::DescribeResponse& message) {
  for (const int dtype : message.quantized_dtypes()) {
    if (dtype == v1::DTYPE_INT8_ROWS) return ActivationForm::kInt8Row;
    if (dtype == v1::DTYPE_INT8_BLOCKS) return ActivationForm::kInt8Blocks;
  }
  return ActivationForm::kBf16;
}

absl::Status DecodeShapes(const v1::DescribeResponse& message, WorkerDescription& result) {
  if (message.hidden_size() == 0) return absl::InternalError("hidden_size=0");
  if (message.num_experts() == 0 || message.num_experts() > kMaxExperts) {
    return absl::InternalError(
        absl::StrCat("num_experts=", message.num_experts(), " is outside 1 to ", kMaxExperts));
  }
  ATELIER_ASSIGN_OR_RETURN(result.hidden_size, ToInt("hidden_size", message.hidden_size()));
  ATELIER_ASSIGN_OR_RETURN(result.num_experts, ToInt("num_experts", message.num_experts()));
  ATELIER_ASSIGN_OR_RETURN(result.top_k, ToInt("top_k", message.top_k()));
  ATELIER_ASSIGN_OR_RETURN(result.intermediate_size,
                           ToInt("intermediate_size", message.intermediate_size()));
  ATELIER_ASSIGN_OR_RETURN(
      result.limits.max_tokens_per_call,
      ToInt("limits.max_tokens_per_call", message.limits().max_tokens_per_call()));
  ATELIER_ASSIGN_OR_RETURN(result.limits.max_queued_calls,
                           ToInt("limits.max_queued_calls", message.limits().max_queued_calls()));
  constexpr uint64_t kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  result.limits.max_message_bytes =
      static_cast<int64_t>(std::min(message.limits().max_message_bytes(), kMax));
  return absl::OkStatus();
}

}  // namespace

void EncodeDescription(const WorkerDescription& description, v1::DescribeResponse* message) {
  message->set_worker_version(description.version);
  message->set_state(ToWire(description.state));
  message->set_epoch(description.epoch);
  message->set_model_digest(description.model_digest);
  message->set_model_type(description.model_type);
  message->set_method(description.method);
  message->set_isa(description.isa);
  message->set_hidden_size(static_cast<uint32_t>(description.hidden_size));
  message->set_num_experts(static_cast<uint32_t>(description.num_experts));
  message->set_top_k(static_cast<uint32_t>(description.top_k));
  message->set_intermediate_size(static_cast<uint32_t>(description.intermediate_size));
  for (const ShardSpec& shard : description.shards) {
    v1::Shard* wire = message->add_shards();
    for (const int layer : shard.layers) wire->add_layers(static_cast<uint32_t>(layer));
    wire->set_expert_begin(static_cast<uint32_t>(shard.expert_begin));
    wire->set_expert_end(static_cast<uint32_t>(shard.expert_end));
    wire->set_slice_index(static_cast<uint32_t>(shard.slice_index));
    wire->set_slice_count(static_cast<uint32_t>(shard.slice_count));
  }
  v1::WorkerLimits* limits = message->mutable_limits();
  limits->set_max_tokens_per_call(static_cast<uint32_t>(description.limits.max_tokens_per_call));
  limits->set_max_message_bytes(static_cast<uint64_t>(description.limits.max_message_bytes));
  limits->set_max_queued_calls(static_cast<uint32_t>(description.limits.max_queued_calls));
  if (description.quantized_rows != ActivationForm::kBf16) {
    message->add_quantized_dtypes(WireDType(description.quantized_rows));
  }
}

absl::StatusOr<WorkerDescription> DecodeDescription(const v1::DescribeResponse& message) {
  WorkerDescription result;
  result.version = message.worker_version();
  ATELIER_ASSIGN_OR_RETURN(result.state, FromWire(message.state()));
  result.epoch = message.epoch();
  result.model_digest = message.model_digest();
  result.model_type = message.model_type();
  result.method = message.method();
  result.isa = message.isa();
  result.quantized_rows = DecodeQuantizedRows(message);
  ATELIER_RETURN_IF_ERROR(DecodeShapes(message, result));
  ATELIER_ASSIGN_OR_RETURN(result.shards,
                           DecodeWireShards(message.shards(), message.num_experts()));
  return result;
}

// What is wrong with a request is its sender's fault.
absl::StatusOr<std::vector<ShardSpec>> DecodeShards(const WireShards& shards,
                                                    uint32_t num_experts) {
  absl::StatusOr<std::vector<ShardSpec>> decoded = DecodeWireShards(shards, num_experts);
  if (decoded.ok() || !absl::IsInternal(decoded.status())) return decoded;
  return absl::InvalidArgumentError(decoded.status().message());
}

}  // namespace atelier
