#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "absl/types/span.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "libs/transport/worker_connection.h"
#include "proto/atelier/v1/expert.pb.h"

namespace atelier {

// The tensors of one batch, copied once, and quantised once when a worker takes rows like that.
// Messages to any worker, of any range of rows, share their memory. Thread-safe: what is sent does
// not change.
class GrpcEncodedForward final : public EncodedForward {
 public:
  // What differs between the messages made of one batch.
  struct Head {
    uint64_t id = 0;
    uint64_t epoch = 0;
    uint64_t timeout_us = 0;
    ActivationForm form = ActivationForm::kBf16;  // of the rows
  };

  explicit GrpcEncodedForward(const ForwardEncoding& encoding);

  // A serialised v1.ForwardRequest of rows [row_begin, row_end).
  grpc::ByteBuffer Message(const Head& head, int row_begin, int row_end) const;

  // The same rows as plain bytes, for a transport that copies them itself.
  struct Tensors {
    absl::Span<const uint8_t> hidden;
    absl::Span<const uint8_t> expert_ids;
    absl::Span<const uint8_t> router_weights;
  };
  Tensors Rows(int row_begin, int row_end) const;

  int layer() const { return layer_; }
  int top_k() const { return top_k_; }
  CallPriority priority() const { return priority_; }
  const std::string& model_digest() const { return model_digest_; }
  int num_tokens() const { return num_tokens_; }
  int hidden_size() const { return hidden_size_; }
  DType output_dtype() const { return output_dtype_; }
  // Of the three tensors together, per row.
  int64_t row_bytes() const;

 private:
  struct Quantized {
    std::once_flag once;
    grpc::Slice codes;   // [T, H]
    grpc::Slice scales;  // [T, ScalesPerRow]
  };
  const Quantized& QuantizedAs(ActivationForm form) const;

  const int layer_;
  const int num_tokens_;
  const int hidden_size_;
  const int top_k_;
  const DType output_dtype_;
  const CallPriority priority_;
  const std::string model_digest_;
  grpc::Slice hidden_;          // [T, H] bf16
  grpc::Slice expert_ids_;      // [T, k] int32
  grpc::Slice router_weights_;  // [T, k] fp32
  mutable Quantized quantized_rows_;
  mutable Quantized quantized_blocks_;
};

// A serialised v1.ForwardRequest that cancels request `id`.
grpc::ByteBuffer CancelMessage(uint64_t id);

}  // namespace atelier
