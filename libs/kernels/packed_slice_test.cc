#include "libs/kernels/packed_slice.h"

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "libs/testing/gemm_runner.h"
#include "libs/testing/packed_weights.h"
#include "libs/testing/random_quant_source.h"
#include "libs/testing/supported_kernels.h"

namespace atelier {
namespace {

using testing::PackedWeights;

constexpr int kN = 80;

// Weights of any method, packed whole or in part.
class AnyWeights {
 public:
  AnyWeights(Method method, int k)
      : method_(method), k_(k), floats_(testing::RandomBf16Values(static_cast<size_t>(kN * k), 3)) {
    if (BlockFormatOf(method) != nullptr) {
      codes_ = std::make_unique<testing::RandomQuantSource>(method, 3);
    } else if (IsFp8(method)) {
      codes_ = std::make_unique<testing::RandomFp8Source>(3);
    }
  }

  PackedWeights Part(int row, int n, int column, int k) const {
    if (codes_) return PackedWeights(method_, n, k, QuantSlice(*codes_, row, column));
    std::vector<float> part;
    for (int r = row; r < row + n; ++r) {
      const float* from = floats_.data() + r * k_ + column;
      part.insert(part.end(), from, from + k);
    }
    return PackedWeights(method_, n, k, part);
  }

 private:
  const Method method_;
  const int k_;
  const std::vector<float> floats_;
  std::unique_ptr<QuantSource> codes_;
};

// The same products, bit by bit, with every kernel of the method.
void ExpectSameProducts(const PackedMatrix& slice, const PackedMatrix& alone) {
  constexpr int kRows = 5;
  const testing::PreparedRows rows(
      slice.method, testing::RandomBf16Values(static_cast<size_t>(kRows * slice.k), 5), kRows,
      slice.k);
  for (const KernelEntry& entry : testing::SupportedKernels(slice.method)) {
    const auto products = [&](const PackedMatrix& matrix) {
      return testing::RunGemm(entry, matrix, rows.rows(), 0, matrix.num_panels());
    };
    const std::vector<float> got = products(slice), want = products(alone);
    EXPECT_TRUE(testing::SameBits(got.data(), want.data(), want.size()))
        << MethodName(slice.method) << " " << entry.isa;
  }
}

TEST(PackedSlice, OfOutputsIsWhatPackingThemAloneGives) {
  for (const Method method : AllMethods()) {
    const AnyWeights weights(method, 256);
    const PackedWeights whole = weights.Part(0, kN, 0, 256);
    const PackedWeights alone = weights.Part(32, 48, 0, 256);
    ExpectSameProducts(SliceOutputs(whole.matrix(), 32, 48), alone.matrix());
  }
}

TEST(PackedSlice, OfInputsIsWhatPackingThemAloneGives) {
  int slices = 0;
  for (const Method method : AllMethods()) {
    const int k = 768 + (KMultiple(method) == 256 ? 0 : 128);
    const AnyWeights weights(method, k);
    const PackedWeights whole = weights.Part(0, kN, 0, k);
    for (const auto& [begin, count] : {std::pair{0, 256}, {256, 256}, {512, k - 512}, {0, k}}) {
      if (!CanSliceInputs(method, k, begin, count)) continue;
      ++slices;
      const PackedWeights alone = weights.Part(0, kN, begin, count);
      const PackedMatrix slice = SliceInputs(whole.matrix(), begin, count);
      for (int panel = 0; panel < kN / kPanelWidth; ++panel) {
        const size_t bytes = PanelBytes(method, count), p = static_cast<size_t>(panel);
        EXPECT_EQ(std::memcmp(slice.data + p * slice.panel_stride, alone.matrix().data + p * bytes,
                              bytes),
                  0)
            << MethodName(method) << " inputs from " << begin << ", panel " << panel;
      }
      ExpectSameProducts(slice, alone.matrix());
    }
  }
  const int proper = static_cast<int>(AllMethods().size()) - 2;  // not INT8, not FP8_ROW
  EXPECT_EQ(slices, 4 * proper + 2);
}

TEST(PackedSlice, OfInputsIsRefusedWhereTheLayoutCannotBeCut) {
  EXPECT_TRUE(CanSliceInputs(Method::kBF16, 96, 32, 64));
  EXPECT_TRUE(CanSliceInputs(Method::kBF16, 80, 32, 48));  // with the end of the matrix
  EXPECT_FALSE(CanSliceInputs(Method::kBF16, 96, 16, 64));
  EXPECT_FALSE(CanSliceInputs(Method::kBF16, 96, 32, 48));
  EXPECT_TRUE(CanSliceInputs(Method::kFP8_BLOCK, 320, 128, 192));
  EXPECT_FALSE(CanSliceInputs(Method::kMXFP8, 320, 64, 256));
  EXPECT_TRUE(CanSliceInputs(Method::kINT4G32, 768, 256, 512));
  EXPECT_FALSE(CanSliceInputs(Method::kINT4G32, 768, 128, 640));
  EXPECT_FALSE(CanSliceInputs(Method::kINT4G32, 768, 0, 384));
  for (const Method method : {Method::kINT8, Method::kFP8_ROW}) {
    EXPECT_FALSE(CanSliceInputs(method, 512, 0, 256));
    EXPECT_TRUE(CanSliceInputs(method, 512, 0, 512));
  }
}

}  // namespace
}  // namespace atelier
