#include <cmath>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "libs/kernels/expert_ffn.h"
#include "libs/kernels/kernel_table.h"
#include "libs/testing/gemm_runner.h"
#include "libs/testing/packed_weights.h"
#include "libs/testing/random_quant_source.h"
#include "libs/testing/supported_kernels.h"

namespace atelier {
namespace {

using testing::KernelName;
using testing::PackedWeights;
using testing::PreparedRows;
using testing::RandomBf16Values;
using testing::RandomQuantSource;
using testing::RunGemm;
using testing::SameBits;
using testing::SupportedBlockKernels;

const KernelEntry& Scalar(Method method) {
  for (const KernelEntry& entry : KernelTable::Candidates()) {
    if (entry.method == method && std::strcmp(entry.isa, "scalar") == 0) return entry;
  }
  ADD_FAILURE() << "no scalar kernel";
  return KernelTable::Candidates().front();
}

// Inputs that end at, before and after blocks of 256, as far as the method has them.
std::vector<int> OddK(Method method) {
  const int step = KMultiple(method);
  std::vector<int> all;
  for (int k : {step, 2 * step, 3 * step, 256 - step, 256, 256 + step, 512, 768 + step}) {
    if (k > 0) all.push_back(k);
  }
  return all;
}

// The activations that PrepareRows makes of bf16 values, read back.
struct Prepared {
  const uint8_t* row;
  double At(int k) const {
    const uint8_t* record = row + k / 256 * 384;
    float scale;
    std::memcpy(&scale, record + 352, sizeof(scale));
    return static_cast<double>(scale) * static_cast<int8_t>(record[k % 256]);
  }
};

class BlockMethods : public ::testing::TestWithParam<Method> {};

// The scalar kernel against double: the weights from their published fields, the activations as
// prepared. Every fma rounds once, and there are one or two of them per scale group and one per
// block (docs/numerics.md).
TEST_P(BlockMethods, ScalarKernelIsTheSumOfTheProducts) {
  const Method method = GetParam();
  const BlockFormat& format = *BlockFormatOf(method);
  const int step = KMultiple(method);
  constexpr int kFirstRow = 5;
  for (const int k : OddK(method)) {
    constexpr int kN = 19;
    const RandomQuantSource source(method, static_cast<uint32_t>(k));
    // A slice of the intermediate dimension begins at any group, not only at a block of 256.
    const int first_column = k / step % 3 * step;
    const PackedWeights weights(method, kN, k, QuantSlice(source, kFirstRow, first_column));
    const PreparedRows rows(method, RandomBf16Values(2 * static_cast<size_t>(k), 7), 2, k);
    const std::vector<float> out = RunGemm(Scalar(method), weights.matrix(), rows.rows(), 0, 2);
    for (int r = 0; r < 2; ++r) {
      const Prepared activation{rows.rows().data + static_cast<size_t>(r) * rows.rows().stride};
      for (int n = 0; n < kN; ++n) {
        double sum = 0, magnitude = 0;
        QuantBlock block{};
        for (int i = 0; i < k; ++i) {
          if (i % step == 0) source.Read(kFirstRow + n, first_column + i, step, block);
          const double product =
              activation.At(i) * RandomQuantSource::Weight(format, block, i % step);
          sum += product;
          // The terms of one weight may cancel.
          magnitude +=
              std::fabs(activation.At(i)) * RandomQuantSource::Terms(format, block, i % step);
        }
        const double roundings = 2.0 * k / format.group + k / 256.0 + 4;
        ASSERT_NEAR(out[static_cast<size_t>(r * 32 + n)], sum, roundings * 0x1p-24 * magnitude)
            << MethodName(method) << " k=" << k << " row " << r << " column " << n;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, BlockMethods, ::testing::ValuesIn([] {
                           std::vector<Method> methods;
                           for (const Method method : AllMethods()) {
                             if (BlockFormatOf(method) != nullptr) methods.push_back(method);
                           }
                           return methods;
                         }()),
                         [](const auto& info) { return std::string(MethodName(info.param)); });

class BlockGemmOnEveryIsa : public ::testing::TestWithParam<KernelEntry> {};

TEST_P(BlockGemmOnEveryIsa, IsBitEqualToScalarOnOddShapes) {
  const Method method = GetParam().method;
  constexpr int kMostRows = 40;
  for (const int n : {0, 1, 16, 17, 33}) {
    for (const int k : OddK(method)) {
      SCOPED_TRACE(::testing::Message() << "n=" << n << " k=" << k);
      const RandomQuantSource source(method, static_cast<uint32_t>(n * 10000 + k));
      const PackedWeights weights(method, n, k, source);
      const std::vector<float> values =
          RandomBf16Values(static_cast<size_t>(kMostRows * k), static_cast<uint32_t>(k));
      const PreparedRows all(method, values, kMostRows, k);
      const int panels = weights.matrix().num_panels();
      const std::vector<float> want =
          RunGemm(Scalar(method), weights.matrix(), all.rows(), 0, panels);
      for (const int rows : {0, 1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 40}) {
        const PreparedRows some(method, values, rows, k);
        const std::vector<float> got =
            RunGemm(GetParam(), weights.matrix(), some.rows(), 0, panels);
        ASSERT_TRUE(SameBits(got.data(), want.data(), got.size())) << "rows=" << rows;
      }
    }
  }
}

// All codes and activations at their largest: where 16-bit sums of products would saturate.
class LargestCodes final : public QuantSource {
 public:
  void Read(int, int, int, QuantBlock& out) const override {
    std::memset(&out, 0, sizeof(out));
    std::memset(out.codes, 0xff, sizeof(out.codes));
    for (uint16_t& scale : out.half_scales) scale = 0x3c00;
    std::memset(out.exponents, 128, sizeof(out.exponents));
    std::memset(out.sub_scales, 15, sizeof(out.sub_scales));
    out.super = 0x3c00;
  }
};

TEST_P(BlockGemmOnEveryIsa, DoesNotSaturateAtTheExtremes) {
  const Method method = GetParam().method;
  constexpr int kK = 512;
  const PackedWeights weights(method, 16, kK, LargestCodes());
  for (const float sign : {1.0f, -1.0f}) {
    const PreparedRows rows(method, std::vector<float>(kK, 127.0f * sign), 1, kK);
    const std::vector<float> got = RunGemm(GetParam(), weights.matrix(), rows.rows(), 0, 1);
    const std::vector<float> want = RunGemm(Scalar(method), weights.matrix(), rows.rows(), 0, 1);
    EXPECT_TRUE(SameBits(got.data(), want.data(), got.size())) << got[0] << " not " << want[0];
  }
}

TEST_P(BlockGemmOnEveryIsa, TakesScalesOfBothSixteenBitKinds) {
  const Method method = GetParam().method;
  const PackedWeights weights(method, 16, 256, RandomQuantSource(method, 5));
  const PreparedRows rows(method, RandomBf16Values(9 * 256, 6), 9, 256);
  PackedMatrix matrix = weights.matrix();
  matrix.bf16_scales = true;
  const std::vector<float> got = RunGemm(GetParam(), matrix, rows.rows(), 0, 1);
  const std::vector<float> want = RunGemm(Scalar(method), matrix, rows.rows(), 0, 1);
  EXPECT_TRUE(SameBits(got.data(), want.data(), got.size()));
}

INSTANTIATE_TEST_SUITE_P(Kernels, BlockGemmOnEveryIsa, ::testing::ValuesIn(SupportedBlockKernels()),
                         KernelName);

}  // namespace
}  // namespace atelier
