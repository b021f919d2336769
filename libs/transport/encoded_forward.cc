#include "libs/transport/encoded_forward.h"

#include <cstring>
#include <utility>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "grpc/slice.h"
#include "libs/base/check.h"
#include "libs/transport/forward_fields.h"

namespace atelier {
namespace {

// Wire type 2, length-delimited.
constexpr uint32_t BytesTag(int field) { return static_cast<uint32_t>(field) << 3 | 2; }

grpc::Slice TagAndLength(int field, size_t length) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.WriteVarint32(BytesTag(field));
    coded.WriteVarint64(length);
  }
  return grpc::Slice(bytes);
}

grpc::Slice SubSlice(const grpc::Slice& slice, size_t begin, size_t end) {
  // c_slice() adds a reference of its own, which this function must give back.
  grpc_slice whole = slice.c_slice();
  grpc::Slice part(grpc_slice_sub(whole, begin, end), grpc::Slice::STEAL_REF);
  grpc_slice_unref(whole);
  return part;
}

// Rows `rows` of [T, row_bytes], or all of them.
grpc::Slice CopyRows(const void* data, size_t row_bytes, int num_tokens,
                     const std::vector<int>* rows) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  if (rows == nullptr) return {bytes, row_bytes * static_cast<size_t>(num_tokens)};
  grpc::Slice copy(row_bytes * rows->size());
  // The slice was just made and nobody else has it yet.
  auto* out = const_cast<uint8_t*>(copy.begin());
  for (const int row : *rows) {
    ATELIER_DCHECK(row >= 0 && row < num_tokens);
    std::memcpy(out, bytes + static_cast<size_t>(row) * row_bytes, row_bytes);
    out += row_bytes;
  }
  return copy;
}

}  // namespace

GrpcEncodedForward::GrpcEncodedForward(const ForwardEncoding& e)
    : layer_(e.layer),
      num_tokens_(e.rows == nullptr ? e.batch.num_tokens : static_cast<int>(e.rows->size())),
      hidden_size_(e.batch.hidden_size),
      top_k_(e.routing.top_k),
      output_dtype_(e.output_dtype),
      priority_(e.priority),
      model_digest_(e.model_digest),
      hidden_(CopyRows(e.batch.rows, static_cast<size_t>(hidden_size_) * sizeof(BFloat16),
                       e.batch.num_tokens, e.rows)),
      expert_ids_(CopyRows(e.routing.expert_ids, static_cast<size_t>(top_k_) * sizeof(int32_t),
                           e.batch.num_tokens, e.rows)),
      router_weights_(CopyRows(e.routing.weights, static_cast<size_t>(top_k_) * sizeof(float),
                               e.batch.num_tokens, e.rows)) {
  ATELIER_DCHECK(e.batch.num_tokens == e.routing.num_tokens);
}

int64_t GrpcEncodedForward::row_bytes() const {
  return static_cast<int64_t>(hidden_size_) * static_cast<int64_t>(sizeof(BFloat16)) +
         static_cast<int64_t>(top_k_) * static_cast<int64_t>(sizeof(int32_t) + sizeof(float));
}

GrpcEncodedForward::Tensors GrpcEncodedForward::Rows(int row_begin, int row_end) const {
  const auto part = [&](const grpc::Slice& tensor) {
    const size_t row = num_tokens_ == 0 ? 0 : tensor.size() / static_cast<size_t>(num_tokens_);
    return absl::MakeConstSpan(tensor.begin() + row * static_cast<size_t>(row_begin),
                               row * static_cast<size_t>(row_end - row_begin));
  };
  return {part(hidden_), part(expert_ids_), part(router_weights_)};
}

const GrpcEncodedForward::Quantized& GrpcEncodedForward::QuantizedAs(ActivationForm form) const {
  Quantized& quantized = form == ActivationForm::kInt8Row ? quantized_rows_ : quantized_blocks_;
  std::call_once(quantized.once, [&] {
    const auto hidden = static_cast<size_t>(hidden_size_);
    const auto tokens = static_cast<size_t>(num_tokens_);
    const size_t num_scales = ScalesPerRow(form, hidden_size_);
    quantized.codes = grpc::Slice(tokens * hidden);
    std::vector<float> scales(tokens * num_scales);
    const auto* rows = reinterpret_cast<const BFloat16*>(hidden_.begin());
    // The slice was just made and nobody else has it yet.
    auto* codes = reinterpret_cast<int8_t*>(const_cast<uint8_t*>(quantized.codes.begin()));
    for (size_t t = 0; t < tokens; ++t) {
      QuantizeRow(form, rows + t * hidden, hidden_size_, codes + t * hidden,
                  scales.data() + t * num_scales);
    }
    quantized.scales = grpc::Slice(scales.data(), scales.size() * sizeof(float));
  });
  return quantized;
}

grpc::ByteBuffer GrpcEncodedForward::Message(const Head& head, int row_begin, int row_end) const {
  v1::ForwardRequest scalars;
  scalars.set_id(head.id);
  scalars.set_layer(static_cast<uint32_t>(layer_));
  scalars.set_num_tokens(static_cast<uint32_t>(row_end - row_begin));
  scalars.set_top_k(static_cast<uint32_t>(top_k_));
  scalars.set_dtype(WireDType(head.form));
  scalars.set_output_dtype(WireDType(output_dtype_));
  scalars.set_timeout_us(head.timeout_us);
  scalars.set_priority(priority_ == CallPriority::kPrefill ? v1::PRIORITY_PREFILL
                                                           : v1::PRIORITY_DECODE);
  scalars.set_epoch(head.epoch);
  scalars.set_model_digest(model_digest_);
  std::vector<grpc::Slice> slices{grpc::Slice(scalars.SerializeAsString())};
  // A message is its fields in any order: the tensors follow the scalars, uncopied.
  const auto append = [&](int field, const grpc::Slice& tensor) {
    const size_t row = num_tokens_ == 0 ? 0 : tensor.size() / static_cast<size_t>(num_tokens_);
    grpc::Slice part =
        SubSlice(tensor, row * static_cast<size_t>(row_begin), row * static_cast<size_t>(row_end));
    slices.push_back(TagAndLength(field, part.size()));
    slices.push_back(std::move(part));
  };
  if (head.form == ActivationForm::kBf16) {
    append(v1::ForwardRequest::kHiddenFieldNumber, hidden_);
  } else {
    const Quantized& quantized = QuantizedAs(head.form);
    append(v1::ForwardRequest::kHiddenFieldNumber, quantized.codes);
    append(v1::ForwardRequest::kHiddenScalesFieldNumber, quantized.scales);
  }
  append(v1::ForwardRequest::kExpertIdsFieldNumber, expert_ids_);
  append(v1::ForwardRequest::kRouterWeightsFieldNumber, router_weights_);
  return grpc::ByteBuffer(slices.data(), slices.size());
}

grpc::ByteBuffer CancelMessage(uint64_t id) {
  v1::ForwardRequest message;
  message.set_id(id);
  message.set_cancel(true);
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

std::shared_ptr<const EncodedForward> EncodeForward(const ForwardEncoding& encoding) {
  return std::make_shared<GrpcEncodedForward>(encoding);
}

}  // namespace atelier
