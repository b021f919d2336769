#include "libs/transport/codec.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/base/status_macros.h"
#include "libs/transport/status_codes.h"

namespace atelier {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "the wire is little-endian; this codec passes tensors through unchanged");

// Keeps the message, and copies of tensors that it holds at an odd address.
struct RequestOwner {
  std::shared_ptr<const v1::ForwardRequest> message;
  std::vector<std::unique_ptr<std::byte[]>> copies;
};

template <typename T>
const T* AlignedView(const std::string& bytes, RequestOwner& owner) {
  if (reinterpret_cast<uintptr_t>(bytes.data()) % alignof(T) == 0) {
    return reinterpret_cast<const T*>(bytes.data());
  }
  owner.copies.push_back(std::make_unique<std::byte[]>(bytes.size()));
  std::memcpy(owner.copies.back().get(), bytes.data(), bytes.size());
  return reinterpret_cast<const T*>(owner.copies.back().get());
}

ForwardFields FieldsOf(const v1::ForwardRequest& m) {
  return {m.id(),
          m.epoch(),
          m.layer(),
          m.num_tokens(),
          m.top_k(),
          static_cast<int>(m.dtype()),
          static_cast<int>(m.output_dtype()),
          static_cast<int>(m.priority()),
          m.hidden().size(),
          m.expert_ids().size(),
          m.router_weights().size(),
          m.hidden_scales().size()};
}

}  // namespace

absl::StatusOr<ForwardRequest> DecodeForwardRequest(
    std::shared_ptr<const v1::ForwardRequest> message, const ForwardShape& shape) {
  const v1::ForwardRequest& m = *message;
  ATELIER_ASSIGN_OR_RETURN(ForwardRequest request, CheckForwardFields(FieldsOf(m), shape));
  auto owner = std::make_shared<RequestOwner>();
  if (request.batch.quantized_form == ActivationForm::kBf16) {
    request.batch.rows = AlignedView<BFloat16>(m.hidden(), *owner);
  } else {
    request.batch.codes = AlignedView<int8_t>(m.hidden(), *owner);
    request.batch.scales = AlignedView<float>(m.hidden_scales(), *owner);
  }
  request.routing.expert_ids = AlignedView<int32_t>(m.expert_ids(), *owner);
  request.routing.weights = AlignedView<float>(m.router_weights(), *owner);
  ATELIER_RETURN_IF_ERROR(ValidateRouting(request.batch, request.routing, shape.num_experts));
  request.model_digest = m.model_digest();
  owner->message = std::move(message);
  request.owner = std::move(owner);
  return request;
}

absl::Duration RequestTimeout(const v1::ForwardRequest& message, absl::Duration default_timeout) {
  return RequestTimeout(message.timeout_us(), default_timeout);
}

void EncodeForwardReply(uint64_t id, ForwardReply reply, v1::ForwardResponse* message) {
  message->set_id(id);
  if (!reply.status.ok()) {
    ToWireStatus(reply.status, message->mutable_status());
    return;
  }
  for (ShardSum& sum : reply.sums) {
    v1::PartialSum* wire = message->add_sums();
    wire->set_shard(static_cast<uint32_t>(sum.shard));
    wire->set_data(std::move(sum.data));
  }
  message->set_queued_us(static_cast<uint64_t>(absl::ToInt64Microseconds(reply.queued)));
  message->set_computed_us(static_cast<uint64_t>(absl::ToInt64Microseconds(reply.computed)));
  message->set_non_finite_tokens(static_cast<uint64_t>(reply.non_finite_tokens));
}

namespace {

// The sum of `shard`, which must be there once.
absl::StatusOr<v1::PartialSum*> FindSum(v1::ForwardResponse& message, int shard) {
  v1::PartialSum* found = nullptr;
  for (v1::PartialSum& sum : *message.mutable_sums()) {
    if (sum.shard() != static_cast<uint32_t>(shard)) continue;
    if (found != nullptr) {
      return absl::InternalError(absl::StrCat("sums has shard ", shard, " twice"));
    }
    found = &sum;
  }
  if (found == nullptr) {
    return absl::InternalError(absl::StrCat("sums lacks shard ", shard, ", which it holds"));
  }
  return found;
}

absl::StatusOr<std::vector<ShardSum>> TakeSums(v1::ForwardResponse& message,
                                               const ExpectedSums& expected) {
  if (static_cast<size_t>(message.sums_size()) != expected.shards.size()) {
    return absl::InternalError(absl::StrCat("sums has ", message.sums_size(), " entries; ",
                                            expected.shards.size(),
                                            " shards of the layer were described"));
  }
  std::vector<ShardSum> sums;
  for (const int shard : expected.shards) {
    ATELIER_ASSIGN_OR_RETURN(v1::PartialSum * sum, FindSum(message, shard));
    ATELIER_RETURN_IF_ERROR(CheckSumBytes(sum->shard(), sum->data().size(), expected.num_tokens,
                                          expected.hidden_size, expected.output_dtype));
    sums.push_back({shard, std::move(*sum->mutable_data())});
  }
  return sums;
}

}  // namespace

ForwardReply DecodeForwardReply(v1::ForwardResponse message, const ExpectedSums& expected) {
  ForwardReply reply;
  if (message.has_status()) reply.status = FromWireStatus(message.status());
  if (!reply.status.ok()) return reply;
  absl::StatusOr<std::vector<ShardSum>> sums = TakeSums(message, expected);
  if (!sums.ok()) {
    reply.status = std::move(sums).status();
    return reply;
  }
  reply.sums = *std::move(sums);
  reply.queued = DurationOfMicros(message.queued_us());
  reply.computed = DurationOfMicros(message.computed_us());
  reply.non_finite_tokens = static_cast<int64_t>(
      std::min<uint64_t>(message.non_finite_tokens(), static_cast<uint64_t>(expected.num_tokens)));
  return reply;
}

}  // namespace atelier
