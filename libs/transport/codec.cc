#include "libs/transport/codec.h"

#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/base/checked_math.h"
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

absl::Status CheckBytes(absl::string_view field, size_t actual, absl::string_view formula,
                        std::optional<uint64_t> expected) {
  if (expected.has_value() && actual == *expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " has ", actual, " bytes; ", formula, " = ",
                   expected.has_value() ? absl::StrCat(*expected) : "more than 2^64"));
}

std::optional<uint64_t> Product(uint64_t a, uint64_t b, uint64_t c) {
  const std::optional<uint64_t> ab = CheckedMul(a, b);
  return ab.has_value() ? CheckedMul(*ab, c) : std::nullopt;
}

absl::Status CheckScalars(const v1::ForwardRequest& m, const ForwardShape& shape) {
  if (m.num_tokens() > static_cast<uint32_t>(shape.max_tokens_per_call)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "num_tokens=", m.num_tokens(), " exceeds max_tokens_per_call=", shape.max_tokens_per_call));
  }
  if (m.top_k() < 1 || m.top_k() > static_cast<uint32_t>(shape.num_experts)) {
    return absl::InvalidArgumentError(
        absl::StrCat("top_k=", m.top_k(), " is outside 1 to num_experts=", shape.num_experts));
  }
  if (m.layer() > static_cast<uint32_t>(std::numeric_limits<int32_t>::max())) {
    return absl::InvalidArgumentError(absl::StrCat("layer=", m.layer(), " is no layer"));
  }
  if (m.dtype() != v1::DTYPE_BF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("dtype=", static_cast<int>(m.dtype()), ": hidden must be DTYPE_BF16 (1)"));
  }
  if (m.priority() != v1::PRIORITY_DECODE && m.priority() != v1::PRIORITY_PREFILL) {
    return absl::InvalidArgumentError(
        absl::StrCat("priority=", static_cast<int>(m.priority()), " is neither 0 nor 1"));
  }
  return absl::OkStatus();
}

absl::Status CheckLengths(const v1::ForwardRequest& m, const ForwardShape& shape) {
  const uint64_t tokens = m.num_tokens();
  ATELIER_RETURN_IF_ERROR(
      CheckBytes("hidden", m.hidden().size(),
                 absl::StrCat("num_tokens ", tokens, " x hidden_size ", shape.hidden_size, " x 2"),
                 Product(tokens, static_cast<uint64_t>(shape.hidden_size), sizeof(BFloat16))));
  const std::string pairs = absl::StrCat("num_tokens ", tokens, " x top_k ", m.top_k(), " x 4");
  ATELIER_RETURN_IF_ERROR(CheckBytes("expert_ids", m.expert_ids().size(), pairs,
                                     Product(tokens, m.top_k(), sizeof(int32_t))));
  return CheckBytes("router_weights", m.router_weights().size(), pairs,
                    Product(tokens, m.top_k(), sizeof(float)));
}

absl::StatusOr<DType> OutputDType(const v1::ForwardRequest& m) {
  switch (m.output_dtype()) {
    case v1::DTYPE_UNSPECIFIED:
    case v1::DTYPE_FP32:
      return DType::kF32;
    case v1::DTYPE_BF16:
      return DType::kBF16;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("output_dtype=", static_cast<int>(m.output_dtype()),
                       ": sums can be DTYPE_FP32 (2) or DTYPE_BF16 (1)"));
  }
}

}  // namespace

absl::StatusOr<ForwardRequest> DecodeForwardRequest(
    std::shared_ptr<const v1::ForwardRequest> message, const ForwardShape& shape) {
  const v1::ForwardRequest& m = *message;
  ATELIER_RETURN_IF_ERROR(CheckScalars(m, shape));
  ATELIER_RETURN_IF_ERROR(CheckLengths(m, shape));
  ATELIER_ASSIGN_OR_RETURN(const DType output_dtype, OutputDType(m));

  auto owner = std::make_shared<RequestOwner>();
  ForwardRequest request;
  request.id = m.id();
  request.layer = static_cast<int>(m.layer());
  const int tokens = static_cast<int>(m.num_tokens());
  request.batch = {tokens, shape.hidden_size, AlignedView<BFloat16>(m.hidden(), *owner)};
  request.routing = {tokens, static_cast<int>(m.top_k()),
                     AlignedView<int32_t>(m.expert_ids(), *owner),
                     AlignedView<float>(m.router_weights(), *owner)};
  ATELIER_RETURN_IF_ERROR(ValidateRouting(request.batch, request.routing, shape.num_experts));
  request.output_dtype = output_dtype;
  request.priority =
      m.priority() == v1::PRIORITY_PREFILL ? CallPriority::kPrefill : CallPriority::kDecode;
  request.epoch = m.epoch();
  request.model_digest = m.model_digest();
  owner->message = std::move(message);
  request.owner = std::move(owner);
  return request;
}

absl::Duration RequestTimeout(const v1::ForwardRequest& message, absl::Duration default_timeout) {
  if (message.timeout_us() == 0) return default_timeout;
  // A day is as good as forever, and leaves the sum with any time of day in range.
  constexpr uint64_t kDayUs = uint64_t{86'400'000'000};
  return absl::Microseconds(static_cast<int64_t>(std::min(message.timeout_us(), kDayUs)));
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

absl::Duration FromMicros(uint64_t micros) {
  constexpr uint64_t kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  return absl::Microseconds(static_cast<int64_t>(std::min(micros, kMax)));
}

absl::Status CheckSum(const v1::PartialSum& sum, const ExpectedSums& expected) {
  const std::optional<uint64_t> bytes =
      Product(static_cast<uint64_t>(expected.num_tokens),
              static_cast<uint64_t>(expected.hidden_size), DTypeBytes(expected.output_dtype));
  if (bytes.has_value() && sum.data().size() == *bytes) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      "sums.data of shard ", sum.shard(), " has ", sum.data().size(), " bytes; num_tokens ",
      expected.num_tokens, " x hidden_size ", expected.hidden_size, " x ",
      DTypeBytes(expected.output_dtype), " = ", bytes.value_or(0)));
}

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
    ATELIER_RETURN_IF_ERROR(CheckSum(*sum, expected));
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
  reply.queued = FromMicros(message.queued_us());
  reply.computed = FromMicros(message.computed_us());
  reply.non_finite_tokens = static_cast<int64_t>(
      std::min<uint64_t>(message.non_finite_tokens(), static_cast<uint64_t>(expected.num_tokens)));
  return reply;
}

}  // namespace atelier
