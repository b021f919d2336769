#include "libs/transport/shm_codec.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/base/checked_math.h"
#include "libs/base/status_macros.h"
#include "libs/transport/status_codes.h"

namespace atelier {
namespace {

constexpr uint64_t kPartAlignment = 64;
// Digests are 64 characters of hex.
constexpr uint64_t kMaxDigestBytes = 512;
constexpr size_t kMaxMessageText = 2000;

// Hands out the parts of a payload one after the other.
class Parts {
 public:
  explicit Parts(uint64_t capacity) : capacity_(capacity) {}

  // The offset of the next part; nullopt when it does not lie in the payload whole.
  std::optional<uint64_t> Next(uint64_t bytes) {
    const std::optional<uint64_t> end = CheckedAdd(next_, bytes);
    if (!end.has_value() || *end > capacity_) return std::nullopt;
    const uint64_t begin = next_;
    next_ = RoundUp(*end, kPartAlignment);
    return begin;
  }

 private:
  const uint64_t capacity_;
  uint64_t next_ = 0;  // <= capacity_ rounded up
};

struct CopiedRoutes {
  std::shared_ptr<const void> memory;
  std::unique_ptr<uint8_t[]> bytes;
};

bool Put(absl::Span<const uint8_t> part, Parts& parts, absl::Span<uint8_t> payload) {
  const std::optional<uint64_t> offset = parts.Next(part.size());
  if (!offset.has_value()) return false;
  if (!part.empty()) std::memcpy(payload.data() + *offset, part.data(), part.size());
  return true;
}

absl::Span<const uint8_t> BytesOf(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

ForwardFields FieldsOf(const ShmRequestHeader& h) {
  return {h.sequence,
          h.epoch,
          h.layer,
          h.num_tokens,
          h.top_k,
          h.dtype,
          h.output_dtype,
          h.priority,
          static_cast<size_t>(h.hidden_bytes),
          static_cast<size_t>(h.expert_ids_bytes),
          static_cast<size_t>(h.router_weights_bytes),
          0};
}

}  // namespace

absl::StatusOr<ShmRequestHeader> WriteShmRequest(const CallMessage& message, uint64_t timeout_us,
                                                 absl::Span<uint8_t> payload) {
  const GrpcEncodedForward& request = *message.request;
  const GrpcEncodedForward::Tensors rows = request.Rows(message.row_begin, message.row_end);
  const std::string& digest = request.model_digest();
  Parts parts(payload.size());
  const bool fits = digest.size() <= kMaxDigestBytes && Put(rows.hidden, parts, payload) &&
                    Put(rows.expert_ids, parts, payload) &&
                    Put(rows.router_weights, parts, payload) &&
                    Put(BytesOf(digest), parts, payload);
  if (!fits) {
    return absl::InvalidArgumentError(
        absl::StrCat("a slot of ", payload.size(), " bytes has no room for ", rows.hidden.size(),
                     " bytes of rows and a digest of ", digest.size()));
  }
  ShmRequestHeader header{};
  header.epoch = message.epoch;
  header.sequence = message.id;
  header.timeout_us = timeout_us;
  header.layer = static_cast<uint32_t>(request.layer());
  header.num_tokens = static_cast<uint32_t>(message.row_end - message.row_begin);
  header.top_k = static_cast<uint32_t>(request.top_k());
  header.dtype = v1::DTYPE_BF16;
  header.output_dtype = WireDType(request.output_dtype());
  header.priority =
      request.priority() == CallPriority::kPrefill ? v1::PRIORITY_PREFILL : v1::PRIORITY_DECODE;
  header.hidden_bytes = rows.hidden.size();
  header.expert_ids_bytes = rows.expert_ids.size();
  header.router_weights_bytes = rows.router_weights.size();
  header.digest_bytes = digest.size();
  return header;
}

absl::StatusOr<ForwardRequest> ReadShmRequest(const ShmRequestHeader& header,
                                              absl::Span<const uint8_t> payload,
                                              const ForwardShape& shape,
                                              std::shared_ptr<const void> memory) {
  ATELIER_ASSIGN_OR_RETURN(ForwardRequest request, CheckForwardFields(FieldsOf(header), shape));
  Parts parts(payload.size());
  const std::optional<uint64_t> hidden = parts.Next(header.hidden_bytes);
  const auto ids = hidden ? parts.Next(header.expert_ids_bytes) : std::nullopt;
  const auto weights = ids ? parts.Next(header.router_weights_bytes) : std::nullopt;
  const auto digest = weights ? parts.Next(header.digest_bytes) : std::nullopt;
  if (!digest.has_value() || header.digest_bytes > kMaxDigestBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "hidden_bytes=", header.hidden_bytes, ", expert_ids_bytes=", header.expert_ids_bytes,
        ", router_weights_bytes=", header.router_weights_bytes, " and digest_bytes=",
        header.digest_bytes, " do not fit a slot of ", payload.size(), " bytes"));
  }
  auto owner = std::make_shared<CopiedRoutes>();
  // Both have num_tokens x top_k entries of four bytes, as was checked.
  const size_t routes = header.expert_ids_bytes;
  owner->bytes = std::make_unique_for_overwrite<uint8_t[]>(2 * routes);
  std::memcpy(owner->bytes.get(), payload.data() + *ids, routes);
  std::memcpy(owner->bytes.get() + routes, payload.data() + *weights, routes);
  request.batch.rows = reinterpret_cast<const BFloat16*>(payload.data() + *hidden);
  request.routing.expert_ids = reinterpret_cast<const int32_t*>(owner->bytes.get());
  request.routing.weights = reinterpret_cast<const float*>(owner->bytes.get() + routes);
  ATELIER_RETURN_IF_ERROR(ValidateRouting(request.batch, request.routing, shape.num_experts));
  request.model_digest.assign(reinterpret_cast<const char*>(payload.data() + *digest),
                              header.digest_bytes);
  owner->memory = std::move(memory);
  request.owner = std::move(owner);
  return request;
}

namespace {

ShmReplyHeader WriteFailure(const absl::Status& status, absl::Span<uint8_t> payload) {
  const absl::string_view text =
      status.message().substr(0, std::min(kMaxMessageText, payload.size()));
  if (!text.empty()) std::memcpy(payload.data(), text.data(), text.size());
  ShmReplyHeader header{};
  header.code = static_cast<int32_t>(status.code());
  header.message_bytes = text.size();
  return header;
}

bool PutSums(const ForwardReply& reply, absl::Span<uint8_t> payload) {
  std::vector<uint32_t> shards;
  for (const ShardSum& sum : reply.sums) shards.push_back(static_cast<uint32_t>(sum.shard));
  Parts parts(payload.size());
  const auto* indices = reinterpret_cast<const uint8_t*>(shards.data());
  return Put({indices, shards.size() * sizeof(uint32_t)}, parts, payload) &&
         std::all_of(reply.sums.begin(), reply.sums.end(), [&](const ShardSum& sum) {
           return sum.data.size() == reply.sums[0].data.size() &&
                  Put(BytesOf(sum.data), parts, payload);
         });
}

}  // namespace

ShmReplyHeader WriteShmReply(const ForwardReply& reply, absl::Span<uint8_t> payload) {
  if (!reply.status.ok()) return WriteFailure(reply.status, payload);
  if (!PutSums(reply, payload)) {
    return WriteFailure(
        absl::ResourceExhaustedError(absl::StrCat("the answer has ", reply.sums.size(), " sums of ",
                                                  reply.sums[0].data.size(), " bytes, its slot ",
                                                  payload.size(), "; send fewer rows at once")),
        payload);
  }
  ShmReplyHeader header{};
  header.num_sums = static_cast<uint32_t>(reply.sums.size());
  header.sum_bytes = reply.sums.empty() ? 0 : reply.sums[0].data.size();
  header.queued_us = static_cast<uint64_t>(absl::ToInt64Microseconds(reply.queued));
  header.computed_us = static_cast<uint64_t>(absl::ToInt64Microseconds(reply.computed));
  header.non_finite_tokens = static_cast<uint64_t>(reply.non_finite_tokens);
  return header;
}

namespace {

absl::Status ReadFailure(const ShmReplyHeader& header, absl::Span<const uint8_t> payload) {
  if (header.message_bytes > payload.size()) {
    return absl::InternalError(absl::StrCat("message_bytes=", header.message_bytes,
                                            " do not fit a slot of ", payload.size(), " bytes"));
  }
  return absl::Status(CanonicalCode(header.code),
                      absl::string_view(reinterpret_cast<const char*>(payload.data()),
                                        static_cast<size_t>(header.message_bytes)));
}

absl::StatusOr<std::vector<ShardSum>> ReadSums(const ShmReplyHeader& header,
                                               absl::Span<const uint8_t> payload,
                                               const ExpectedSums& expected) {
  const size_t count = expected.shards.size();
  if (header.num_sums != count) {
    return absl::InternalError(absl::StrCat("sums has ", header.num_sums, " entries; ", count,
                                            " shards of the layer were described"));
  }
  ATELIER_RETURN_IF_ERROR(CheckSumBytes(0, header.sum_bytes, expected.num_tokens,
                                        expected.hidden_size, expected.output_dtype));
  Parts parts(payload.size());
  std::vector<uint32_t> shards(count);
  const std::optional<uint64_t> indices = parts.Next(count * sizeof(uint32_t));
  if (indices && count > 0) {
    std::memcpy(shards.data(), payload.data() + *indices, count * sizeof(uint32_t));
  }
  std::vector<ShardSum> sums;
  for (size_t i = 0; i < count; ++i) {
    const std::optional<uint64_t> offset = parts.Next(header.sum_bytes);
    // A worker sends the shards of a layer in the order in which it described them.
    if (shards[i] != static_cast<uint32_t>(expected.shards[i])) {
      return absl::InternalError(absl::StrCat("sums lacks shard ", expected.shards[i],
                                              ", which it holds: shard ", shards[i],
                                              " is in its place"));
    }
    if (!offset.has_value()) {
      return absl::InternalError(absl::StrCat(count, " sums of ", header.sum_bytes,
                                              " bytes do not fit a slot of ", payload.size()));
    }
    sums.push_back(
        {expected.shards[i], std::string(reinterpret_cast<const char*>(payload.data() + *offset),
                                         static_cast<size_t>(header.sum_bytes))});
  }
  return sums;
}

}  // namespace

ForwardReply ReadShmReply(const ShmReplyHeader& header, absl::Span<const uint8_t> payload,
                          const ExpectedSums& expected) {
  ForwardReply reply;
  if (header.code != 0) {
    reply.status = ReadFailure(header, payload);
    return reply;
  }
  absl::StatusOr<std::vector<ShardSum>> sums = ReadSums(header, payload, expected);
  if (!sums.ok()) {
    reply.status = std::move(sums).status();
    return reply;
  }
  reply.sums = *std::move(sums);
  reply.queued = DurationOfMicros(header.queued_us);
  reply.computed = DurationOfMicros(header.computed_us);
  reply.non_finite_tokens = static_cast<int64_t>(
      std::min<uint64_t>(header.non_finite_tokens, static_cast<uint64_t>(expected.num_tokens)));
  return reply;
}

}  // namespace atelier
