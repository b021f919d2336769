#include <cstddef>
#include <cstdint>
#include <memory>

#include "libs/base/check.h"
#include "libs/transport/codec.h"

// Gives the same bytes to every decoder of the wire, and reads all that a decoded value says it
// has. Corpus: testdata/fuzz_corpus, which also runs as a unit test.

namespace atelier {
namespace {

// The sum of all elements that rows are said to have.
uint64_t ReadRows(const TokenBatch& batch) {
  uint64_t bits = 0;
  const int elements = batch.num_tokens * batch.hidden_size;
  if (batch.quantized_form == ActivationForm::kBf16) {
    for (int i = 0; i < elements; ++i) bits += batch.rows[i].bits;
    return bits;
  }
  ATELIER_CHECK(batch.num_quantized == batch.num_tokens);
  for (int i = 0; i < elements; ++i) bits += static_cast<uint64_t>(batch.codes[i]);
  const size_t scales = ScalesPerRow(batch.quantized_form, batch.hidden_size);
  for (size_t i = 0; i < static_cast<size_t>(batch.num_tokens) * scales; ++i) {
    bits += batch.scales[i] > 0 ? 1 : 0;
  }
  return bits;
}

void DecodeAsRequest(const uint8_t* data, int size, ActivationForm form) {
  const ForwardShape shape{/*hidden_size=*/4, /*num_experts=*/8, /*max_tokens_per_call=*/16, form};
  auto message = std::make_shared<v1::ForwardRequest>();
  if (!message->ParseFromArray(data, size)) return;
  const absl::StatusOr<ForwardRequest> request = DecodeForwardRequest(message, shape);
  if (!request.ok()) return;
  ATELIER_CHECK(request->batch.num_tokens >= 0 && request->batch.num_tokens <= 16);
  uint64_t bits = ReadRows(request->batch);
  for (int i = 0; i < request->batch.num_tokens * request->routing.top_k; ++i) {
    ATELIER_CHECK(request->routing.expert_ids[i] < shape.num_experts);
    bits += request->routing.weights[i] > 0 ? 1 : 0;
  }
  [[maybe_unused]] const volatile uint64_t sink = bits;
  ATELIER_CHECK(RequestTimeout(*message, absl::Seconds(1)) > absl::ZeroDuration());
}

void DecodeAsReply(const uint8_t* data, int size) {
  v1::ForwardResponse message;
  if (!message.ParseFromArray(data, size)) return;
  const ForwardReply reply = DecodeForwardReply(std::move(message), {{0, 2}, 2, 4, DType::kF32});
  ATELIER_CHECK(reply.sums.size() == (reply.status.ok() ? 2u : 0u));
  for (const ShardSum& sum : reply.sums) ATELIER_CHECK(sum.data.size() == 32);
}

void DecodeAsDescription(const uint8_t* data, int size) {
  v1::DescribeResponse message;
  if (!message.ParseFromArray(data, size)) return;
  const absl::StatusOr<WorkerDescription> description = DecodeDescription(message);
  if (!description.ok()) return;
  v1::DescribeResponse again;
  EncodeDescription(*description, &again);
  const absl::StatusOr<WorkerDescription> decoded = DecodeDescription(again);
  ATELIER_CHECK(decoded.ok() && decoded->shards == description->shards);
}

}  // namespace
}  // namespace atelier

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  for (const auto form : {atelier::ActivationForm::kBf16, atelier::ActivationForm::kInt8Row,
                          atelier::ActivationForm::kInt8Blocks}) {
    atelier::DecodeAsRequest(data, static_cast<int>(size), form);
  }
  atelier::DecodeAsReply(data, static_cast<int>(size));
  atelier::DecodeAsDescription(data, static_cast<int>(size));
  return 0;
}
