#include "services/gpu-frontend/api/response_stream.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atelier {
namespace {

namespace wire = ::sglang::grpc::scheduler;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

ResponseOptions Options(bool stream, int n = 1) {
  ResponseOptions options;
  options.request_id = "r1";
  options.stream = stream;
  options.n = n;
  return options;
}

TokenDelta Delta(int index, std::vector<int32_t> tokens, int completion_tokens) {
  TokenDelta delta;
  delta.index = index;
  delta.tokens = std::move(tokens);
  delta.prompt_tokens = 4;
  delta.cached_tokens = 2;
  delta.completion_tokens = completion_tokens;
  return delta;
}

TokenDelta Last(TokenDelta delta, FinishReason reason) {
  delta.finish = reason;
  return delta;
}

TokenLogprob Logprob(int32_t token, float logprob, int top = 0) {
  TokenLogprob result;
  result.token = token;
  result.logprob = logprob;
  for (int i = 0; i < top; ++i) result.top.emplace_back(100 + i, -1.0f - static_cast<float>(i));
  return result;
}

std::vector<wire::GenerateResponse> TakeAll(ResponseStream& stream) {
  std::vector<wire::GenerateResponse> messages;
  wire::GenerateResponse message;
  while (stream.Next(&message)) messages.push_back(message);
  return messages;
}

TEST(ResponseStream, StreamsNewTokensWithCumulativeCountsThenOneComplete) {
  ResponseStream stream(Options(true));
  stream.Add(Delta(0, {10}, 1));
  auto messages = TakeAll(stream);
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0].request_id(), "r1");
  EXPECT_THAT(messages[0].chunk().token_ids(), ElementsAre(10));
  EXPECT_EQ(messages[0].chunk().prompt_tokens(), 4u);
  EXPECT_EQ(messages[0].chunk().cached_tokens(), 2u);
  EXPECT_EQ(messages[0].chunk().completion_tokens(), 1u);

  stream.Add(Delta(0, {11, 12}, 3));
  TokenDelta end = Last(Delta(0, {}, 4), FinishReason::kStop);  // an end-of-sequence id: counted
  end.matched_token = 2;
  stream.Add(std::move(end));
  messages = TakeAll(stream);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_THAT(messages[0].chunk().token_ids(), ElementsAre(11, 12));
  EXPECT_EQ(messages[0].chunk().completion_tokens(), 3u);
  const wire::GenerateComplete& complete = messages[1].complete();
  EXPECT_THAT(complete.output_ids(), ElementsAre(10, 11, 12));
  EXPECT_EQ(complete.finish_reason(), "stop");
  EXPECT_EQ(complete.matched_token_id(), 2u);
  EXPECT_EQ(complete.completion_tokens(), 4u);
  EXPECT_TRUE(stream.done());
}

TEST(ResponseStream, UnaryAnswersWithTheCompleteAlone) {
  ResponseStream stream(Options(false));
  stream.Add(Delta(0, {10}, 1));
  EXPECT_THAT(TakeAll(stream), IsEmpty());
  stream.Add(Last(Delta(0, {11}, 2), FinishReason::kLength));
  const auto messages = TakeAll(stream);
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_THAT(messages[0].complete().output_ids(), ElementsAre(10, 11));
  EXPECT_EQ(messages[0].complete().finish_reason(), "length");
  EXPECT_EQ(messages[0].complete().matched_stop_case(),
            wire::GenerateComplete::MATCHED_STOP_NOT_SET);
}

TEST(ResponseStream, CompletesComeInTheOrderOfTheirIndex) {
  for (const bool streaming : {false, true}) {
    ResponseStream stream(Options(streaming, 3));
    stream.Add(Last(Delta(2, {}, 0), FinishReason::kStop));
    stream.Add(Last(Delta(1, {}, 0), FinishReason::kAbort));
    EXPECT_THAT(TakeAll(stream), IsEmpty());
    EXPECT_FALSE(stream.ended());
    stream.Add(Last(Delta(0, {}, 0), FinishReason::kLength));
    EXPECT_TRUE(stream.ended());
    const auto messages = TakeAll(stream);
    ASSERT_EQ(messages.size(), 3u);
    for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(messages[i].complete().index(), i);
    EXPECT_EQ(messages[1].complete().finish_reason(), "abort");
    EXPECT_TRUE(stream.done());
  }
}

TEST(ResponseStream, SequencesTakeTurns) {
  ResponseStream stream(Options(true, 2));
  wire::GenerateResponse message;
  stream.Add(Delta(0, {1}, 1));
  stream.Add(Delta(1, {2}, 1));
  ASSERT_TRUE(stream.Next(&message));
  EXPECT_EQ(message.chunk().index(), 0u);
  stream.Add(Delta(0, {3}, 2));
  ASSERT_TRUE(stream.Next(&message));
  EXPECT_EQ(message.chunk().index(), 1u);
}

TEST(ResponseStream, ASlowReaderGetsWhatItMissedInOneChunk) {
  ResponseStream stream(Options(true));
  for (int i = 0; i < 1000; ++i) stream.Add(Delta(0, {i}, i + 1));
  const auto messages = TakeAll(stream);
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0].chunk().token_ids_size(), 1000);
  EXPECT_EQ(messages[0].chunk().completion_tokens(), 1000u);
}

TEST(ResponseStream, IntervalGathersTokensButNeverHoldsBackTheFirstOrTheLast) {
  ResponseOptions options = Options(true);
  options.stream_interval = 3;
  ResponseStream stream(options);
  std::vector<int> sizes;
  for (int i = 0; i < 6; ++i) {
    stream.Add(Delta(0, {i}, i + 1));
    for (const auto& message : TakeAll(stream)) sizes.push_back(message.chunk().token_ids_size());
  }
  EXPECT_THAT(sizes, ElementsAre(1, 3));
  stream.Add(Last(Delta(0, {}, 7), FinishReason::kStop));
  const auto messages = TakeAll(stream);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].chunk().token_ids_size(), 2);
}

TEST(ResponseStream, LogprobsAreParallelToTheNewTokens) {
  ResponseOptions options = Options(true);
  options.logprobs = true;
  ResponseStream stream(options);
  TokenDelta first = Delta(0, {10}, 1);
  first.logprobs = {Logprob(10, -0.5f, 2)};
  first.prompt_logprobs = {TokenLogprob{7, std::nullopt, {}}, Logprob(8, -3.0f)};
  stream.Add(std::move(first));
  TokenDelta second = Delta(0, {11}, 2);
  second.logprobs = {Logprob(11, -0.25f, 2)};
  auto messages = TakeAll(stream);
  ASSERT_EQ(messages.size(), 1u);
  const wire::InputLogProbs& input = messages[0].chunk().input_logprobs();
  ASSERT_EQ(input.token_logprobs_size(), 2);
  EXPECT_FALSE(input.token_logprobs(0).has_value());
  EXPECT_EQ(input.token_logprobs(1).value(), -3.0f);
  EXPECT_THAT(input.token_ids(), ElementsAre(7, 8));
  stream.Add(std::move(second));
  messages = TakeAll(stream);
  ASSERT_EQ(messages.size(), 1u);
  const wire::OutputLogProbs& output = messages[0].chunk().output_logprobs();
  EXPECT_THAT(output.token_ids(), ElementsAre(11));
  EXPECT_THAT(output.token_logprobs(), ElementsAre(-0.25f));
  ASSERT_EQ(output.top_logprobs_size(), 1);
  EXPECT_THAT(output.top_logprobs(0).token_ids(), ElementsAre(100, 101));
  EXPECT_FALSE(messages[0].chunk().has_input_logprobs());
}

TEST(ResponseStream, UnaryCompleteCarriesAllLogprobs) {
  ResponseOptions options = Options(false, 2);
  options.logprobs = true;
  ResponseStream stream(options);
  TokenDelta first = Delta(0, {10}, 1);
  first.logprobs = {Logprob(10, -0.5f)};
  first.prompt_logprobs = {TokenLogprob{7, std::nullopt, {}}};
  stream.Add(std::move(first));
  TokenDelta second = Last(Delta(0, {11}, 2), FinishReason::kLength);
  second.logprobs = {Logprob(11, -0.25f)};
  stream.Add(std::move(second));
  stream.Add(Last(Delta(1, {}, 1), FinishReason::kStop));
  const auto messages = TakeAll(stream);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_THAT(messages[0].complete().output_logprobs().token_logprobs(),
              ElementsAre(-0.5f, -0.25f));
  EXPECT_THAT(messages[0].complete().input_logprobs().token_ids(), ElementsAre(7));
  EXPECT_THAT(messages[1].complete().input_logprobs().token_ids(), ElementsAre(7));
}

TEST(ResponseStream, NoMessageExceedsTheLimit) {
  ResponseOptions options = Options(true);
  options.logprobs = true;
  options.max_message_bytes = 1000;
  ResponseStream stream(options);
  for (int i = 0; i < 200; ++i) {
    TokenDelta delta = Delta(0, {0x7fffffff}, i + 1);
    delta.logprobs = {Logprob(0x7fffffff, -0.5f, 20)};
    stream.Add(std::move(delta));
  }
  int tokens = 0;
  const auto messages = TakeAll(stream);
  for (const auto& message : messages) {
    EXPECT_LE(message.ByteSizeLong(), 1000u + 40u);
    EXPECT_EQ(message.chunk().token_ids_size(), message.chunk().output_logprobs().token_ids_size());
    tokens += message.chunk().token_ids_size();
    EXPECT_EQ(message.chunk().completion_tokens(), static_cast<uint32_t>(tokens));
  }
  EXPECT_EQ(tokens, 200);
  EXPECT_GT(messages.size(), 1u);
}

TEST(ResponseStream, LogprobBytesBoundsTheEncoding) {
  for (const int top : {0, 1, 20, 128}) {
    wire::GenerateComplete complete;
    const std::vector<TokenLogprob> tokens(100, Logprob(0x7fffffff, -1.5f, top));
    ResponseOptions options = Options(false);
    options.logprobs = true;
    ResponseStream stream(options);
    TokenDelta delta =
        Last(Delta(0, std::vector<int32_t>(100, 0x7fffffff), 100), FinishReason::kLength);
    delta.logprobs = tokens;
    for (TokenLogprob& token : delta.logprobs) {
      for (auto& [id, logprob] : token.top) id = 0x7fffffff;
    }
    stream.Add(std::move(delta));
    const auto messages = TakeAll(stream);
    ASSERT_EQ(messages.size(), 1u);
    EXPECT_LE(messages[0].ByteSizeLong(), 100 * LogprobBytes(static_cast<size_t>(top)) + 64);
  }
}

}  // namespace
}  // namespace atelier
