#include "libs/transport/shm_codec.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/fuzz_corpus.h"
#include "libs/testing/status_matchers.h"
#include "libs/transport/shm_segment.h"

namespace atelier {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

TEST(ShmFuzzCorpus, IsSurvived) {
  testing::RunFuzzCorpus("libs/transport/testdata/shm_fuzz_corpus", 27);
}

TEST(ShmCodec, ARequestComesOutAsItWentIn) {
  const std::vector<BFloat16> rows(3 * 4, ToBFloat16(1.5f));
  const std::vector<int32_t> ids = {0, 1, 2, 3, -1, 7};
  const std::vector<float> weights = {0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f};
  ForwardEncoding encoding;
  encoding.layer = 5;
  encoding.batch = {3, 4, rows.data()};
  encoding.routing = {3, 2, ids.data(), weights.data()};
  encoding.output_dtype = DType::kBF16;
  encoding.priority = CallPriority::kPrefill;
  encoding.model_digest = "abc";
  const auto memory = std::make_shared<std::array<uint8_t, 4096>>();
  const CallMessage message{
      9, 4, 0, std::static_pointer_cast<const GrpcEncodedForward>(EncodeForward(encoding)), 1, 3};
  const auto header = WriteShmRequest(message, 77, absl::MakeSpan(*memory));
  ASSERT_THAT(header, IsOk());
  EXPECT_EQ(header->timeout_us, 77u);
  const auto request = ReadShmRequest(*header, *memory, {4, 8, 16}, memory);
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->id, 9u);
  EXPECT_EQ(request->epoch, 4u);
  EXPECT_EQ(request->layer, 5);
  EXPECT_EQ(request->batch.num_tokens, 2);
  EXPECT_EQ(request->output_dtype, DType::kBF16);
  EXPECT_EQ(request->priority, CallPriority::kPrefill);
  EXPECT_EQ(request->model_digest, "abc");
  EXPECT_EQ(ToFloat(request->batch.rows[7]), 1.5f);
  EXPECT_EQ(request->routing.expert_ids[3], 7);
  EXPECT_EQ(request->routing.weights[0], 0.3f);
}

TEST(ShmCodec, AnAnswerComesOutAsItWentIn) {
  std::array<uint8_t, 4096> payload{};
  ForwardReply reply;
  reply.sums = {{1, std::string(32, 'a')}, {4, std::string(32, 'b')}};
  reply.queued = absl::Microseconds(3);
  reply.computed = absl::Microseconds(5);
  const ExpectedSums expected{{1, 4}, 2, 4, DType::kF32};
  const ForwardReply read =
      ReadShmReply(WriteShmReply(reply, absl::MakeSpan(payload)), payload, expected);
  ASSERT_THAT(read.status, IsOk());
  EXPECT_EQ(read.sums[1].shard, 4);
  EXPECT_EQ(read.sums[1].data, reply.sums[1].data);
  EXPECT_EQ(read.queued, reply.queued);
  EXPECT_EQ(read.computed, reply.computed);
}

TEST(ShmCodec, SumsThatDoNotFitAreAnErrorOfTheCall) {
  std::array<uint8_t, 64> payload{};
  ForwardReply reply;
  reply.sums = {{1, std::string(32, 'a')}};
  const ForwardReply read = ReadShmReply(WriteShmReply(reply, absl::MakeSpan(payload)), payload,
                                         {{1}, 2, 4, DType::kF32});
  EXPECT_THAT(read.status,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("its slot 64")));
}

TEST(ShmSegment, RefusesMemoryWhoseSizeTheOtherSideCanChange) {
  const ShmGeometry geometry{2, 4096, 4096};
  const auto segment = ShmSegment::Create(geometry, {});
  ASSERT_THAT(segment, IsOk());
  EXPECT_NE(::ftruncate((*segment)->fd(), 0), 0);
  EXPECT_THAT(ShmSegment::Open(::dup((*segment)->fd()), geometry), IsOk());
  EXPECT_THAT(ShmSegment::Open(::dup((*segment)->fd()), {4, 4096, 4096}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("its slots need")));
  const int loose = ::memfd_create("loose", MFD_ALLOW_SEALING);
  ASSERT_EQ(::ftruncate(loose, 1 << 20), 0);
  EXPECT_THAT(ShmSegment::Open(loose, geometry),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("made smaller")));
}

}  // namespace
}  // namespace atelier
