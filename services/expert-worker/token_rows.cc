#include "services/expert-worker/token_rows.h"

#include <cstring>

#include "libs/base/check.h"

namespace atelier {

void TokenRows::Start(Method method, const LayerBatch& batch, size_t num_routed_rows) {
  used_ = true;
  method_ = method;
  const ActivationForm form = ActivationFormOf(method);
  ATELIER_CHECK(batch.tokens.num_quantized == 0 || batch.tokens.quantized_form == form);
  scaled_ = form == ActivationForm::kInt8Row;
  stride_ = ActivationRowBytes(method, batch.tokens.hidden_size);
  const auto num_tokens = static_cast<size_t>(batch.tokens.num_tokens);
  tokens_.Reserve(num_tokens * stride_);
  rows_.Reserve(num_routed_rows * stride_);
  if (!scaled_) return;
  token_scales_.Reserve(num_tokens);
  row_scales_.Reserve(num_routed_rows);
}

void TokenRows::Prepare(const LayerBatch& batch, const std::vector<int32_t>& route_rows,
                        size_t begin, size_t end) {
  const auto top_k = static_cast<size_t>(batch.routing.top_k);
  const size_t shard_routes = static_cast<size_t>(batch.routing.num_tokens) * top_k;
  for (size_t token = begin; token < end; ++token) {
    PrepareToken(batch.tokens, token);
    for (size_t route = token * top_k; route < route_rows.size(); route += shard_routes) {
      Copy(token, route_rows.data() + route, top_k);
    }
  }
}

void TokenRows::PrepareToken(const TokenBatch& tokens, size_t token) {
  const auto hidden = static_cast<size_t>(tokens.hidden_size);
  uint8_t* const data = tokens_.data() + token * stride_;
  float* const scale = scaled_ ? token_scales_.data() + token : nullptr;
  const auto num_bf16 = static_cast<size_t>(tokens.num_tokens - tokens.num_quantized);
  if (token < num_bf16) {
    PrepareRows(method_, tokens.rows + token * hidden, hidden, 1, tokens.hidden_size, data, scale);
    return;
  }
  const size_t row = token - num_bf16;
  PlaceQuantizedRow(method_, tokens.codes + row * hidden,
                    tokens.scales + row * ScalesPerRow(tokens.quantized_form, tokens.hidden_size),
                    tokens.hidden_size, data, scale);
}

void TokenRows::Copy(size_t token, const int32_t* rows, size_t num_rows) {
  for (size_t j = 0; j < num_rows; ++j) {
    if (rows[j] == BatchPlan::kNoRow) continue;
    const auto row = static_cast<size_t>(rows[j]);
    std::memcpy(rows_.data() + row * stride_, tokens_.data() + token * stride_, stride_);
    if (scaled_) row_scales_.data()[row] = token_scales_.data()[token];
  }
}

ActivationRows TokenRows::RowsOf(const BatchPlan& plan, const RowUnit& unit) const {
  const size_t first =
      unit.consecutive ? static_cast<size_t>(plan.rows()[unit.first_row].token) : unit.first_row;
  const AlignedBuffer<uint8_t>& data = unit.consecutive ? tokens_ : rows_;
  const AlignedBuffer<float>& scales = unit.consecutive ? token_scales_ : row_scales_;
  return {data.data() + first * stride_, stride_, scaled_ ? scales.data() + first : nullptr,
          unit.num_rows};
}

}  // namespace atelier
