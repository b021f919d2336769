#pragma once

#include <cstddef>
#include <cstdint>

#include "libs/kernels/aligned_buffer.h"
#include "libs/kernels/expert_ffn.h"
#include "services/expert-worker/batch_plan.h"

namespace atelier {

// The tokens of a batch in one ActivationForm: each prepared once, whatever the number of its
// experts, and copied once to each of its experts that has other tokens too. Different tokens may
// be prepared by different threads at a time.
class TokenRows {
 public:
  // Before a batch. `method`: any that multiplies this form.
  void Start(Method method, const LayerBatch& batch, size_t num_routed_rows);
  void Skip() { used_ = false; }  // no expert of the batch multiplies this form
  bool used() const { return used_; }

  // Tokens [begin, end). `route_rows`: BatchPlan::route_rows() of the batch.
  void Prepare(const LayerBatch& batch, const std::vector<int32_t>& route_rows, size_t begin,
               size_t end);

  // The rows of a unit, once all its tokens are prepared.
  ActivationRows RowsOf(const BatchPlan& plan, const RowUnit& unit) const;

 private:
  void PrepareToken(const TokenBatch& tokens, size_t token);
  void Copy(size_t token, const int32_t* rows, size_t num_rows);

  bool used_ = false;
  Method method_ = Method::kBF16;
  bool scaled_ = false;
  size_t stride_ = 0;
  AlignedBuffer<uint8_t> tokens_;  // [T, stride_]
  AlignedBuffer<float> token_scales_;
  AlignedBuffer<uint8_t> rows_;  // [routed rows, stride_]; those that are copied
  AlignedBuffer<float> row_scales_;
};

}  // namespace atelier
