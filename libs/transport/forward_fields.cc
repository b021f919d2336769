#include "libs/transport/forward_fields.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "libs/base/check.h"
#include "libs/base/checked_math.h"
#include "libs/base/status_macros.h"

namespace atelier {
namespace {

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

absl::Status CheckScalars(const ForwardFields& m, const ForwardShape& shape) {
  if (m.num_tokens > static_cast<uint32_t>(shape.max_tokens_per_call)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "num_tokens=", m.num_tokens, " exceeds max_tokens_per_call=", shape.max_tokens_per_call));
  }
  if (m.top_k < 1 || m.top_k > static_cast<uint32_t>(shape.num_experts)) {
    return absl::InvalidArgumentError(
        absl::StrCat("top_k=", m.top_k, " is outside 1 to num_experts=", shape.num_experts));
  }
  if (m.layer > static_cast<uint32_t>(std::numeric_limits<int32_t>::max())) {
    return absl::InvalidArgumentError(absl::StrCat("layer=", m.layer, " is no layer"));
  }
  const v1::DType quantized = WireDType(shape.quantized_rows);
  if (m.dtype != v1::DTYPE_BF16 && m.dtype != quantized) {
    return absl::InvalidArgumentError(absl::StrCat(
        "dtype=", m.dtype, ": hidden must be DTYPE_BF16 (1)",
        quantized == v1::DTYPE_BF16 ? ""
                                    : absl::StrCat(" or ", v1::DType_Name(quantized), " (",
                                                   static_cast<int>(quantized), ")")));
  }
  if (m.priority != v1::PRIORITY_DECODE && m.priority != v1::PRIORITY_PREFILL) {
    return absl::InvalidArgumentError(absl::StrCat("priority=", m.priority, " is neither 0 nor 1"));
  }
  return absl::OkStatus();
}

absl::Status CheckLengths(const ForwardFields& m, const ForwardShape& shape) {
  const uint64_t tokens = m.num_tokens;
  const bool bf16 = m.dtype == v1::DTYPE_BF16;
  const size_t element = bf16 ? sizeof(BFloat16) : sizeof(int8_t);
  ATELIER_RETURN_IF_ERROR(CheckBytes(
      "hidden", m.hidden_bytes,
      absl::StrCat("num_tokens ", tokens, " x hidden_size ", shape.hidden_size, " x ", element),
      Product(tokens, static_cast<uint64_t>(shape.hidden_size), element)));
  const size_t scales = bf16 ? 0 : ScalesPerRow(shape.quantized_rows, shape.hidden_size);
  ATELIER_RETURN_IF_ERROR(
      CheckBytes("hidden_scales", m.hidden_scales_bytes,
                 bf16 ? "with rows in DTYPE_BF16 there are none, which"
                      : absl::StrCat("num_tokens ", tokens, " x ", scales, " per row x 4"),
                 Product(tokens, scales, sizeof(float))));
  const std::string pairs = absl::StrCat("num_tokens ", tokens, " x top_k ", m.top_k, " x 4");
  ATELIER_RETURN_IF_ERROR(CheckBytes("expert_ids", m.expert_ids_bytes, pairs,
                                     Product(tokens, m.top_k, sizeof(int32_t))));
  return CheckBytes("router_weights", m.router_weights_bytes, pairs,
                    Product(tokens, m.top_k, sizeof(float)));
}

absl::StatusOr<DType> OutputDType(const ForwardFields& m) {
  switch (m.output_dtype) {
    case v1::DTYPE_UNSPECIFIED:
    case v1::DTYPE_FP32:
      return DType::kF32;
    case v1::DTYPE_BF16:
      return DType::kBF16;
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "output_dtype=", m.output_dtype, ": sums can be DTYPE_FP32 (2) or DTYPE_BF16 (1)"));
  }
}

}  // namespace

v1::DType WireDType(DType dtype) {
  ATELIER_CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  return dtype == DType::kBF16 ? v1::DTYPE_BF16 : v1::DTYPE_FP32;
}

v1::DType WireDType(ActivationForm form) {
  switch (form) {
    case ActivationForm::kBf16:
      return v1::DTYPE_BF16;
    case ActivationForm::kInt8Row:
      return v1::DTYPE_INT8_ROWS;
    case ActivationForm::kInt8Blocks:
      return v1::DTYPE_INT8_BLOCKS;
  }
  return v1::DTYPE_UNSPECIFIED;
}

absl::StatusOr<ForwardRequest> CheckForwardFields(const ForwardFields& fields,
                                                  const ForwardShape& shape) {
  ATELIER_RETURN_IF_ERROR(CheckScalars(fields, shape));
  ATELIER_RETURN_IF_ERROR(CheckLengths(fields, shape));
  ATELIER_ASSIGN_OR_RETURN(const DType output_dtype, OutputDType(fields));
  ForwardRequest request;
  request.id = fields.id;
  request.layer = static_cast<int>(fields.layer);
  const int tokens = static_cast<int>(fields.num_tokens);
  request.batch = {tokens, shape.hidden_size, nullptr};
  if (fields.dtype != v1::DTYPE_BF16) {
    request.batch.num_quantized = tokens;
    request.batch.quantized_form = shape.quantized_rows;
  }
  request.routing = {tokens, static_cast<int>(fields.top_k), nullptr, nullptr};
  request.output_dtype = output_dtype;
  request.priority =
      fields.priority == v1::PRIORITY_PREFILL ? CallPriority::kPrefill : CallPriority::kDecode;
  request.epoch = fields.epoch;
  return request;
}

absl::Duration RequestTimeout(uint64_t timeout_us, absl::Duration default_timeout) {
  if (timeout_us == 0) return default_timeout;
  // A day is as good as forever, and leaves the sum with any time of day in range.
  constexpr uint64_t kDayUs = uint64_t{86'400'000'000};
  return absl::Microseconds(static_cast<int64_t>(std::min(timeout_us, kDayUs)));
}

absl::Duration DurationOfMicros(uint64_t micros) {
  constexpr uint64_t kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  return absl::Microseconds(static_cast<int64_t>(std::min(micros, kMax)));
}

absl::Status CheckSumBytes(uint64_t shard, size_t actual, int num_tokens, int hidden_size,
                           DType dtype) {
  const std::optional<uint64_t> bytes = Product(
      static_cast<uint64_t>(num_tokens), static_cast<uint64_t>(hidden_size), DTypeBytes(dtype));
  if (bytes.has_value() && actual == *bytes) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      "sums.data of shard ", shard, " has ", actual, " bytes; num_tokens ", num_tokens,
      " x hidden_size ", hidden_size, " x ", DTypeBytes(dtype), " = ", bytes.value_or(0)));
}

}  // namespace atelier
