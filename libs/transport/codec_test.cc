#include "libs/transport/codec.h"

#include <cstring>
#include <limits>

#include "gmock/gmock.h"
#include "grpcpp/support/byte_buffer.h"
#include "gtest/gtest.h"
#include "libs/testing/fake_worker.h"
#include "libs/testing/status_matchers.h"
#include "libs/transport/encoded_forward.h"
#include "libs/transport/status_codes.h"

namespace atelier {
namespace {

using ::atelier::testing::FakeDescription;
using ::atelier::testing::StatusIs;
using ::testing::HasSubstr;

constexpr ForwardShape kShape{/*hidden_size=*/4, /*num_experts=*/8, /*max_tokens_per_call=*/16};

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// T = 3, k = 2.
v1::ForwardRequest GoodRequest() {
  v1::ForwardRequest message;
  message.set_id(9);
  message.set_layer(5);
  message.set_num_tokens(3);
  message.set_top_k(2);
  message.set_dtype(v1::DTYPE_BF16);
  message.set_hidden(Bytes(std::vector<uint16_t>(12, 0x3f80)));
  message.set_expert_ids(Bytes(std::vector<int32_t>{0, 7, -1, 3, 2, 1}));
  message.set_router_weights(Bytes(std::vector<float>{1, 2, 3, 4, 5, 6}));
  return message;
}

absl::StatusOr<ForwardRequest> Decode(const v1::ForwardRequest& message) {
  return DecodeForwardRequest(std::make_shared<v1::ForwardRequest>(message), kShape);
}

v1::ForwardRequest ParseBuffer(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  v1::ForwardRequest message;
  EXPECT_TRUE(message.ParseFromString(bytes));
  return message;
}

TEST(Codec, RequestsSurviveTheWireInEveryRangeOfRows) {
  const std::vector<uint16_t> bits = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  std::vector<BFloat16> rows;
  for (const uint16_t value : bits) rows.push_back({value});
  const std::vector<int32_t> ids = {0, 7, -1, 3, 2, 1};
  const std::vector<float> weights = {1, 2, 3, 4, 5, 6};
  ForwardEncoding encoding;
  encoding.layer = 5;
  encoding.batch = {3, 4, rows.data()};
  encoding.routing = {3, 2, ids.data(), weights.data()};
  encoding.output_dtype = DType::kBF16;
  encoding.priority = CallPriority::kPrefill;
  encoding.model_digest = "d1";
  const GrpcEncodedForward encoded(encoding);
  for (int begin = 0; begin <= 3; ++begin) {
    for (int end = begin; end <= 3; ++end) {
      const auto request = Decode(ParseBuffer(encoded.Message({77, 12, 1000}, begin, end)));
      ATELIER_ASSERT_OK(request);
      EXPECT_EQ(request->id, 77u);
      EXPECT_EQ(request->epoch, 12u);
      EXPECT_EQ(request->layer, 5);
      EXPECT_EQ(request->batch.num_tokens, end - begin);
      EXPECT_EQ(request->routing.top_k, 2);
      EXPECT_EQ(request->output_dtype, DType::kBF16);
      EXPECT_EQ(request->priority, CallPriority::kPrefill);
      EXPECT_EQ(request->model_digest, "d1");
      const size_t n = static_cast<size_t>(end - begin);
      const size_t from = static_cast<size_t>(begin);
      EXPECT_EQ(std::memcmp(request->batch.rows, rows.data() + from * 4, n * 8), 0);
      EXPECT_EQ(std::memcmp(request->routing.expert_ids, ids.data() + from * 2, n * 8), 0);
      EXPECT_EQ(std::memcmp(request->routing.weights, weights.data() + from * 2, n * 8), 0);
    }
  }
}

ForwardShape Taking(ActivationForm form) {
  ForwardShape shape = kShape;
  shape.hidden_size = 300;
  shape.quantized_rows = form;
  return shape;
}

// Three rows of 300, of which one is not finite.
struct WideBatch {
  WideBatch() {
    for (int i = 0; i < 900; ++i) rows.push_back(ToBFloat16(static_cast<float>(i % 97) - 41.0f));
    rows[450].bits = 0x7f80;
    encoding.batch = {3, 300, rows.data()};
    encoding.routing = {3, 2, ids.data(), weights.data()};
  }
  std::vector<BFloat16> rows;
  std::vector<int32_t> ids = {0, 7, -1, 3, 2, 1};
  std::vector<float> weights = {1, 2, 3, 4, 5, 6};
  ForwardEncoding encoding;
};

constexpr ActivationForm kInt8Forms[] = {ActivationForm::kInt8Row, ActivationForm::kInt8Blocks};

TEST(Codec, QuantisedRowsSurviveTheWireInEveryRangeOfRows) {
  const WideBatch batch;
  const GrpcEncodedForward encoded(batch.encoding);
  for (const ActivationForm form : kInt8Forms) {
    const size_t num_scales = ScalesPerRow(form, 300);
    std::vector<int8_t> codes(900);
    std::vector<float> scales(3 * num_scales);
    for (size_t t = 0; t < 3; ++t) {
      QuantizeRow(form, batch.rows.data() + t * 300, 300, codes.data() + t * 300,
                  scales.data() + t * num_scales);
    }
    for (int begin = 0; begin <= 3; ++begin) {
      for (int end = begin; end <= 3; ++end) {
        const auto request = DecodeForwardRequest(
            std::make_shared<v1::ForwardRequest>(
                ParseBuffer(encoded.Message({77, 12, 1000, form}, begin, end))),
            Taking(form));
        ATELIER_ASSERT_OK(request);
        const size_t n = static_cast<size_t>(end - begin), from = static_cast<size_t>(begin);
        EXPECT_EQ(request->batch.num_tokens, end - begin);
        EXPECT_EQ(request->batch.num_quantized, end - begin);
        EXPECT_EQ(request->batch.quantized_form, form);
        EXPECT_EQ(request->batch.rows, nullptr);
        EXPECT_EQ(std::memcmp(request->batch.codes, codes.data() + from * 300, n * 300), 0);
        EXPECT_EQ(std::memcmp(request->batch.scales, scales.data() + from * num_scales,
                              n * num_scales * sizeof(float)),
                  0);
      }
    }
  }
}

TEST(Codec, RowsInAFormThatTheWorkerDoesNotTakeAreRefused) {
  const WideBatch batch;
  const GrpcEncodedForward encoded(batch.encoding);
  const auto decode = [&](ActivationForm sent, ActivationForm taken) {
    return DecodeForwardRequest(std::make_shared<v1::ForwardRequest>(
                                    ParseBuffer(encoded.Message({1, 0, 0, sent}, 0, 3))),
                                Taking(taken))
        .status();
  };
  const auto refused = [](const std::string& said) {
    return StatusIs(absl::StatusCode::kInvalidArgument, said);
  };
  EXPECT_THAT(decode(ActivationForm::kInt8Row, ActivationForm::kBf16),
              refused("dtype=3: hidden must be DTYPE_BF16 (1)"));
  EXPECT_THAT(decode(ActivationForm::kInt8Row, ActivationForm::kInt8Blocks),
              refused("dtype=3: hidden must be DTYPE_BF16 (1) or DTYPE_INT8_BLOCKS (4)"));
  EXPECT_THAT(decode(ActivationForm::kInt8Blocks, ActivationForm::kInt8Row),
              refused("dtype=4: hidden must be DTYPE_BF16 (1) or DTYPE_INT8_ROWS (3)"));
  ATELIER_EXPECT_OK(decode(ActivationForm::kBf16, ActivationForm::kInt8Row));
}

TEST(Codec, LengthsOfCodesAndScalesAreChecked) {
  const WideBatch batch;
  const GrpcEncodedForward encoded(batch.encoding);
  const auto spoilt = [&](ActivationForm form,
                          const std::function<void(v1::ForwardRequest&)>& spoil) {
    auto message =
        std::make_shared<v1::ForwardRequest>(ParseBuffer(encoded.Message({1, 0, 0, form}, 0, 3)));
    spoil(*message);
    return DecodeForwardRequest(message, Taking(ActivationForm::kInt8Blocks)).status();
  };
  const auto refused = [](const std::string& said) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(said));
  };
  const ActivationForm blocks = ActivationForm::kInt8Blocks;
  EXPECT_THAT(spoilt(blocks, [](auto& m) { m.mutable_hidden()->pop_back(); }),
              refused("hidden has 899 bytes; num_tokens 3 x hidden_size 300 x 1 = 900"));
  EXPECT_THAT(spoilt(blocks, [](auto& m) { m.mutable_hidden_scales()->pop_back(); }),
              refused("hidden_scales has 23 bytes; num_tokens 3 x 2 per row x 4 = 24"));
  EXPECT_THAT(spoilt(blocks, [](auto& m) { m.clear_hidden_scales(); }),
              refused("hidden_scales has 0 bytes"));
  EXPECT_THAT(spoilt(ActivationForm::kBf16, [](auto& m) { m.set_hidden_scales("1234"); }),
              refused("hidden_scales has 4 bytes; with rows in DTYPE_BF16 there are none"));
}

TEST(Codec, ARequestKeepsTheMemoryItViews) {
  auto message = std::make_shared<v1::ForwardRequest>(GoodRequest());
  const std::weak_ptr<v1::ForwardRequest> watch = message;
  auto request = DecodeForwardRequest(std::move(message), kShape);
  ATELIER_ASSERT_OK(request);
  EXPECT_FALSE(watch.expired());
  EXPECT_EQ(request->routing.expert_ids[3], 3);
  request->owner = nullptr;
  EXPECT_TRUE(watch.expired());
}

TEST(Codec, TimeoutsAreOptionalAndNeverOverflow) {
  v1::ForwardRequest message;
  EXPECT_EQ(RequestTimeout(message, absl::Seconds(7)), absl::Seconds(7));
  message.set_timeout_us(1500);
  EXPECT_EQ(RequestTimeout(message, absl::Seconds(7)), absl::Microseconds(1500));
  message.set_timeout_us(std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(RequestTimeout(message, absl::Seconds(7)), absl::Hours(24));
}

struct BadRequest {
  std::string name;
  std::function<void(v1::ForwardRequest&)> spoil;
  std::string said;
};

class RequestRefused : public ::testing::TestWithParam<BadRequest> {};

TEST_P(RequestRefused, NamesFieldAndValue) {
  v1::ForwardRequest message = GoodRequest();
  ATELIER_ASSERT_OK(Decode(message));
  GetParam().spoil(message);
  EXPECT_THAT(Decode(message),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(GetParam().said)));
}

constexpr uint32_t kMax32 = std::numeric_limits<uint32_t>::max();

INSTANTIATE_TEST_SUITE_P(
    Fields, RequestRefused,
    ::testing::Values(
        BadRequest{"tokens", [](auto& m) { m.set_num_tokens(17); },
                   "num_tokens=17 exceeds max_tokens_per_call=16"},
        BadRequest{"tokens_huge", [](auto& m) { m.set_num_tokens(kMax32); }, "num_tokens=4294967"},
        BadRequest{"tokens_fewer", [](auto& m) { m.set_num_tokens(2); },
                   "hidden has 24 bytes; num_tokens 2 x hidden_size 4 x 2 = 16"},
        BadRequest{"tokens_none", [](auto& m) { m.set_num_tokens(0); }, "hidden has 24 bytes"},
        BadRequest{"top_k_none", [](auto& m) { m.set_top_k(0); }, "top_k=0"},
        BadRequest{"top_k_many", [](auto& m) { m.set_top_k(9); },
                   "top_k=9 is outside 1 to num_experts=8"},
        BadRequest{"top_k_huge", [](auto& m) { m.set_top_k(kMax32); }, "top_k=4294967295"},
        BadRequest{"top_k_other", [](auto& m) { m.set_top_k(3); },
                   "expert_ids has 24 bytes; num_tokens 3 x top_k 3 x 4 = 36"},
        BadRequest{"layer", [](auto& m) { m.set_layer(kMax32); }, "layer=4294967295"},
        BadRequest{"dtype_none", [](auto& m) { m.set_dtype(v1::DTYPE_UNSPECIFIED); }, "dtype=0"},
        BadRequest{"dtype_fp32", [](auto& m) { m.set_dtype(v1::DTYPE_FP32); }, "dtype=2"},
        BadRequest{"dtype_unknown", [](auto& m) { m.set_dtype(static_cast<v1::DType>(77)); },
                   "dtype=77"},
        BadRequest{"output_unknown",
                   [](auto& m) { m.set_output_dtype(static_cast<v1::DType>(78)); },
                   "output_dtype=78"},
        BadRequest{"priority", [](auto& m) { m.set_priority(static_cast<v1::Priority>(5)); },
                   "priority=5"},
        BadRequest{"hidden_short", [](auto& m) { m.mutable_hidden()->pop_back(); },
                   "hidden has 23 bytes"},
        BadRequest{"hidden_none", [](auto& m) { m.clear_hidden(); }, "hidden has 0 bytes"},
        BadRequest{"ids_long", [](auto& m) { m.mutable_expert_ids()->push_back('x'); },
                   "expert_ids has 25 bytes"},
        BadRequest{"weights_short", [](auto& m) { m.mutable_router_weights()->resize(20); },
                   "router_weights has 20 bytes; num_tokens 3 x top_k 2 x 4 = 24"},
        BadRequest{"id_too_large", [](auto& m) { (*m.mutable_expert_ids())[4] = 8; },
                   "token 0, position 1 is 8, but num_experts=8"}),
    [](const auto& info) { return info.param.name; });

TEST(Codec, ARequestOfNoTokensIsFine) {
  v1::ForwardRequest message = GoodRequest();
  message.set_num_tokens(0);
  message.clear_hidden();
  message.clear_expert_ids();
  message.clear_router_weights();
  ATELIER_ASSERT_OK_AND_ASSIGN(const ForwardRequest request, Decode(message));
  EXPECT_EQ(request.batch.num_tokens, 0);
}

const ExpectedSums kExpected{{2, 0}, /*num_tokens=*/3, /*hidden_size=*/4, DType::kF32};

v1::ForwardResponse GoodResponse() {
  ForwardReply reply;
  reply.sums = {{0, std::string(48, 'a')}, {2, std::string(48, 'b')}};
  reply.queued = absl::Microseconds(5);
  reply.computed = absl::Milliseconds(2);
  reply.non_finite_tokens = 1;
  v1::ForwardResponse message;
  EncodeForwardReply(4, std::move(reply), &message);
  return message;
}

TEST(Codec, RepliesSurviveTheWireInTheExpectedOrder) {
  EXPECT_EQ(GoodResponse().id(), 4u);
  const ForwardReply reply = DecodeForwardReply(GoodResponse(), kExpected);
  ATELIER_ASSERT_OK(reply.status);
  ASSERT_EQ(reply.sums.size(), 2u);
  EXPECT_EQ(reply.sums[0].shard, 2);
  EXPECT_EQ(reply.sums[0].data, std::string(48, 'b'));
  EXPECT_EQ(reply.sums[1].shard, 0);
  EXPECT_EQ(reply.queued, absl::Microseconds(5));
  EXPECT_EQ(reply.computed, absl::Milliseconds(2));
  EXPECT_EQ(reply.non_finite_tokens, 1);
}

TEST(Codec, AFailedReplyKeepsCodeAndMessageAndNoSums) {
  ForwardReply reply;
  reply.status = absl::DeadlineExceededError("too late");
  reply.sums = {{0, "x"}};
  v1::ForwardResponse message;
  EncodeForwardReply(4, std::move(reply), &message);
  EXPECT_EQ(message.sums_size(), 0);
  EXPECT_THAT(DecodeForwardReply(message, kExpected).status,
              StatusIs(absl::StatusCode::kDeadlineExceeded, "too late"));
  message.mutable_status()->set_code(99);
  EXPECT_THAT(DecodeForwardReply(message, kExpected).status,
              StatusIs(absl::StatusCode::kUnknown, "too late"));
}

struct BadResponse {
  std::string name;
  std::function<void(v1::ForwardResponse&)> spoil;
  std::string said;
};

class ResponseRefused : public ::testing::TestWithParam<BadResponse> {};

TEST_P(ResponseRefused, NamesFieldAndValue) {
  v1::ForwardResponse message = GoodResponse();
  GetParam().spoil(message);
  const ForwardReply reply = DecodeForwardReply(message, kExpected);
  EXPECT_THAT(reply.status, StatusIs(absl::StatusCode::kInternal, HasSubstr(GetParam().said)));
  EXPECT_TRUE(reply.sums.empty());
}

INSTANTIATE_TEST_SUITE_P(
    Fields, ResponseRefused,
    ::testing::Values(
        BadResponse{"short_sum", [](auto& m) { m.mutable_sums(1)->mutable_data()->pop_back(); },
                    "shard 2 has 47 bytes; num_tokens 3 x hidden_size 4 x 4 = 48"},
        BadResponse{"no_sums", [](auto& m) { m.clear_sums(); }, "sums has 0 entries; 2 shards"},
        BadResponse{"more_sums", [](auto& m) { m.add_sums(); }, "sums has 3 entries"},
        BadResponse{"twice", [](auto& m) { m.mutable_sums(0)->set_shard(2); }, "shard 2 twice"},
        BadResponse{"other", [](auto& m) { m.mutable_sums(0)->set_shard(1); }, "lacks shard 0"},
        BadResponse{"beyond_int", [](auto& m) { m.mutable_sums(0)->set_shard(kMax32); },
                    "lacks shard 0"}),
    [](const auto& info) { return info.param.name; });

TEST(Codec, DescriptionsSurviveTheWire) {
  WorkerDescription description = FakeDescription();
  description.shards.push_back({{1, 7}, 3, 8, 2, 5});
  v1::DescribeResponse message;
  EncodeDescription(description, &message);
  ATELIER_ASSERT_OK_AND_ASSIGN(const WorkerDescription decoded, DecodeDescription(message));
  EXPECT_EQ(decoded.version, description.version);
  EXPECT_EQ(decoded.state, description.state);
  EXPECT_EQ(decoded.epoch, description.epoch);
  EXPECT_EQ(decoded.model_digest, description.model_digest);
  EXPECT_EQ(decoded.model_type, description.model_type);
  EXPECT_EQ(decoded.method, description.method);
  EXPECT_EQ(decoded.isa, description.isa);
  EXPECT_EQ(decoded.hidden_size, description.hidden_size);
  EXPECT_EQ(decoded.num_experts, description.num_experts);
  EXPECT_EQ(decoded.top_k, description.top_k);
  EXPECT_EQ(decoded.intermediate_size, description.intermediate_size);
  EXPECT_EQ(decoded.shards, description.shards);
  EXPECT_EQ(decoded.limits.max_tokens_per_call, description.limits.max_tokens_per_call);
  EXPECT_EQ(decoded.limits.max_message_bytes, description.limits.max_message_bytes);
  EXPECT_EQ(decoded.limits.max_queued_calls, description.limits.max_queued_calls);
  EXPECT_EQ(decoded.quantized_rows, ActivationForm::kBf16);
  for (const ActivationForm form : kInt8Forms) {
    description.quantized_rows = form;
    EncodeDescription(description, &message);
    ATELIER_ASSERT_OK_AND_ASSIGN(const WorkerDescription offers, DecodeDescription(message));
    EXPECT_EQ(offers.quantized_rows, form);
    message.Clear();
  }
}

TEST(Codec, FormsOfRowsThatALaterWorkerOffersArePassedOver) {
  v1::DescribeResponse message;
  EncodeDescription(FakeDescription(), &message);
  message.add_quantized_dtypes(static_cast<v1::DType>(77));
  ATELIER_ASSERT_OK_AND_ASSIGN(const WorkerDescription none, DecodeDescription(message));
  EXPECT_EQ(none.quantized_rows, ActivationForm::kBf16);
  message.add_quantized_dtypes(v1::DTYPE_INT8_BLOCKS);
  ATELIER_ASSERT_OK_AND_ASSIGN(const WorkerDescription known, DecodeDescription(message));
  EXPECT_EQ(known.quantized_rows, ActivationForm::kInt8Blocks);
}

struct BadDescription {
  std::string name;
  std::function<void(v1::DescribeResponse&)> spoil;
  std::string said;
};

class DescriptionRefused : public ::testing::TestWithParam<BadDescription> {};

TEST_P(DescriptionRefused, NamesFieldAndValue) {
  v1::DescribeResponse message;
  EncodeDescription(FakeDescription(), &message);
  GetParam().spoil(message);
  EXPECT_THAT(DecodeDescription(message),
              StatusIs(absl::StatusCode::kInternal, HasSubstr(GetParam().said)));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, DescriptionRefused,
    ::testing::Values(
        BadDescription{"state_none", [](auto& m) { m.clear_state(); }, "state=0"},
        BadDescription{"state_unknown",
                       [](auto& m) { m.set_state(static_cast<v1::WorkerState>(44)); }, "state=44"},
        BadDescription{"hidden_none", [](auto& m) { m.set_hidden_size(0); }, "hidden_size=0"},
        BadDescription{"hidden_huge", [](auto& m) { m.set_hidden_size(kMax32); },
                       "hidden_size=4294967295"},
        BadDescription{"experts_none", [](auto& m) { m.set_num_experts(0); }, "num_experts=0"},
        BadDescription{"experts_huge", [](auto& m) { m.set_num_experts(1u << 30); },
                       "num_experts=1073741824"},
        BadDescription{"range_empty", [](auto& m) { m.mutable_shards(0)->set_expert_begin(8); },
                       "expert_begin=8, expert_end=8"},
        BadDescription{"range_beyond", [](auto& m) { m.mutable_shards(0)->set_expert_end(9); },
                       "expert_end=9"},
        BadDescription{"slice_beyond", [](auto& m) { m.mutable_shards(0)->set_slice_index(1); },
                       "slice_index=1 is outside slice_count=1"},
        BadDescription{"slices_none", [](auto& m) { m.mutable_shards(0)->set_slice_count(0); },
                       "slice_count=0"},
        BadDescription{"slices_huge", [](auto& m) { m.mutable_shards(0)->set_slice_count(kMax32); },
                       "slice_count=4294967295"},
        BadDescription{"layers_double", [](auto& m) { m.mutable_shards(0)->set_layers(1, 0); },
                       "shards.layers is not ascending: 0 after 0"},
        BadDescription{"layer_huge", [](auto& m) { m.mutable_shards(0)->set_layers(3, kMax32); },
                       "shards.layers=4294967295"},
        BadDescription{"many_shards",
                       [](auto& m) {
                         const v1::Shard shard = m.shards(0);
                         for (int i = 0; i < 5000; ++i) *m.add_shards() = shard;
                       },
                       "shards has 5001 entries"}),
    [](const auto& info) { return info.param.name; });

TEST(StatusCodes, EveryCodeCrossesGrpcUnchanged) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(status)), status);
  }
  EXPECT_TRUE(FromGrpcStatus(ToGrpcStatus(absl::OkStatus())).ok());
  EXPECT_THAT(FromGrpcStatus(grpc::Status(grpc::StatusCode::DO_NOT_USE, "odd")),
              StatusIs(absl::StatusCode::kUnknown, "odd"));
  const std::string novel(10000, 'x');
  EXPECT_LT(ToGrpcStatus(absl::InternalError(novel)).error_message().size(), 8192u / 3);
}

TEST(StatusCodes, WhatGrpcSaysItselfIsPutInWords) {
  const auto message = [](grpc::StatusCode code, const char* text) {
    return std::string(FromGrpcStatus(grpc::Status(code, text)).message());
  };
  EXPECT_EQ(message(grpc::StatusCode::CANCELLED, "CANCELLED"), "the call was cancelled");
  EXPECT_EQ(message(grpc::StatusCode::CANCELLED, ""), "the call was cancelled");
  EXPECT_EQ(message(grpc::StatusCode::UNAVAILABLE, "Cancelling all calls"),
            "the peer is shutting down");
  EXPECT_EQ(message(grpc::StatusCode::UNAVAILABLE, "Socket closed"),
            "the peer closed the connection");
  EXPECT_EQ(message(grpc::StatusCode::UNAVAILABLE, "recvmsg:Connection reset by peer"),
            "the peer closed the connection");
  EXPECT_THAT(message(grpc::StatusCode::UNIMPLEMENTED, ""), HasSubstr("does not know this call"));
  EXPECT_EQ(message(grpc::StatusCode::INTERNAL, ""), "the peer gave no reason");
  EXPECT_EQ(message(grpc::StatusCode::NOT_FOUND, "no such layer"), "no such layer");
}

}  // namespace
}  // namespace atelier
