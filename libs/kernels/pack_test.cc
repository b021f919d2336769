#include "libs/kernels/pack.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/packed_weights.h"
#include "libs/testing/status_matchers.h"

namespace atelier {
namespace {

using testing::GuardedBuffer;
using ::testing::HasSubstr;
using testing::RandomBf16Values;

using Block = GuardedBuffer<uint8_t>;

void PackAll(const WeightSource& source, Method method, int n, int k, Block& block) {
  PackMatrix(source, method, n, k, 0, (n + 15) / 16, block.data());
}

// Where docs/weight-layout.md puts byte `b` of the K bytes of output row `row`.
size_t ByteAt(int row, size_t b, size_t padded_row_bytes) {
  const size_t panel = static_cast<size_t>(row) / 16, column = static_cast<size_t>(row) % 16;
  return panel * 16 * padded_row_bytes + b / 4 * 64 + column * 4 + b % 4;
}

uint16_t Bf16At(const Block& block, int row, int k, size_t padded_row_bytes) {
  const uint8_t* low = block.data() + ByteAt(row, static_cast<size_t>(k) * 2, padded_row_bytes);
  return static_cast<uint16_t>(low[0] | low[1] << 8);
}

int CodeAt(const Block& block, int row, int k, size_t padded_row_bytes) {
  return block.data()[ByteAt(row, static_cast<size_t>(k), padded_row_bytes)] - 128;
}

// The values as `dtype`, ending at an inaccessible page.
class Source {
 public:
  Source(DType dtype, const std::vector<float>& values)
      : dtype_(dtype), bytes_(values.size() * DTypeBytes(dtype)) {
    uint8_t* at = bytes_.data();
    for (float value : values) {
      const uint32_t bits = std::bit_cast<uint32_t>(value);
      if (dtype == DType::kF32) std::memcpy(at, &bits, 4);
      if (dtype == DType::kBF16) std::memcpy(at, reinterpret_cast<const uint8_t*>(&bits) + 2, 2);
      if (dtype == DType::kF16) StoreHalf(value, at);
      at += DTypeBytes(dtype);
    }
  }
  WeightSource at(size_t element, size_t row_stride) const {
    return {dtype_, bytes_.data() + element * DTypeBytes(dtype_), row_stride};
  }

 private:
  // Exact for the normal halves the tests use.
  static void StoreHalf(float value, uint8_t* at) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    uint32_t half = (bits >> 16) & 0x8000u;
    if (value != 0) half |= (((bits >> 23) & 0xffu) - 112) << 10 | ((bits >> 13) & 0x3ffu);
    std::memcpy(at, &half, 2);
  }

  DType dtype_;
  Block bytes_;
};

// Multiples of 1/8 in [-8, 8): exact in every source type.
std::vector<float> ExactValues(size_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<float> values(count);
  for (float& value : values) value = (static_cast<float>(generator() % 128) - 64) / 8;
  return values;
}

TEST(PackedSizes, PadRowsOfKTo64BytesAndRowsOfNToPanels) {
  EXPECT_EQ(PaddedRowBytes(Method::kBF16, 1), 64u);
  EXPECT_EQ(PaddedRowBytes(Method::kBF16, 32), 64u);
  EXPECT_EQ(PaddedRowBytes(Method::kBF16, 33), 128u);
  EXPECT_EQ(PaddedRowBytes(Method::kINT8, 64), 64u);
  EXPECT_EQ(PaddedRowBytes(Method::kINT8, 65), 128u);
  EXPECT_EQ(PanelBytes(Method::kINT8, 65), 2048u);
  EXPECT_EQ(PackedDataBytes(Method::kBF16, 17, 33), 2u * 16 * 128);
  EXPECT_EQ(PackedMatrixBytes(Method::kBF16, 17, 33), 2u * 16 * 128);
  EXPECT_EQ(PackedMatrixBytes(Method::kINT8, 17, 33), 2u * 16 * 64 + 32 * 4);
  EXPECT_EQ(PackedMatrixBytes(Method::kINT8, 0, 33), 0u);
}

TEST(ValidatePackedShape, NamesTheValuesItRefuses) {
  ATELIER_EXPECT_OK(ValidatePackedShape(Method::kINT8, 1408, MaxPackedK(Method::kINT8)));
  for (auto [n, k] : {std::pair{16, MaxPackedK(Method::kINT8) + 1}, {16, 0}, {-1, 16}}) {
    EXPECT_THAT(ValidatePackedShape(Method::kINT8, n, k),
                testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                  HasSubstr(absl::StrCat("[", n, ", ", k))));
  }
}

class PackEverySource : public ::testing::TestWithParam<DType> {};

TEST_P(PackEverySource, Bf16LayoutIsByteByByteAsDocumented) {
  for (auto [n, k] : {std::pair{1, 1}, {16, 32}, {17, 33}, {35, 70}}) {
    const std::vector<float> values = ExactValues(static_cast<size_t>(n * k), 1);
    const Source source(GetParam(), values);
    Block block(PackedMatrixBytes(Method::kBF16, n, k));
    std::memset(block.data(), 0xee, block.size());
    PackAll(source.at(0, static_cast<size_t>(k)), Method::kBF16, n, k, block);
    const size_t row_bytes = PaddedRowBytes(Method::kBF16, k);
    for (int row = 0; row < (n + 15) / 16 * 16; ++row) {
      for (int i = 0; i < static_cast<int>(row_bytes / 2); ++i) {
        const float want = row < n && i < k ? values[static_cast<size_t>(row * k + i)] : 0.0f;
        ASSERT_EQ(Bf16At(block, row, i, row_bytes), ToBFloat16(want).bits) << row << "," << i;
      }
    }
  }
}

TEST_P(PackEverySource, Int8CodesAreSymmetricPerRowAndOffsetBy128) {
  constexpr int kN = 19, kK = 70;
  const std::vector<float> values = ExactValues(kN * kK, 2);
  const Source source(GetParam(), values);
  Block block(PackedMatrixBytes(Method::kINT8, kN, kK));
  std::memset(block.data(), 0xee, block.size());
  PackAll(source.at(0, kK), Method::kINT8, kN, kK, block);
  const PackedMatrix matrix = PackedMatrixAt(Method::kINT8, kN, kK, block.data());
  const size_t row_bytes = PaddedRowBytes(Method::kINT8, kK);
  for (int row = 0; row < 32; ++row) {
    float largest = 0;
    for (int i = 0; i < kK && row < kN; ++i) {
      largest = std::max(largest, std::fabs(values[static_cast<size_t>(row * kK + i)]));
    }
    EXPECT_EQ(matrix.row_scales[row], largest / 127.0f);
    for (int i = 0; i < static_cast<int>(row_bytes); ++i) {
      const int code = CodeAt(block, row, i, row_bytes);
      const bool padding = row >= kN || i >= kK;
      const double exact =
          padding ? 0.0 : values[static_cast<size_t>(row * kK + i)] / double{largest} * 127;
      ASSERT_LE(std::fabs(code - exact), padding ? 0.0 : 0.5 + 127 * 0x1p-22) << row << "," << i;
    }
  }
}

TEST_P(PackEverySource, SlicesOfRowsAndColumnsReadOnlyTheirPart) {
  // Columns [33, 50) of a [20, 50] matrix, as a down projection is cut; its last row ends the file.
  constexpr int kN = 20, kAll = 50, kFirst = 33, kK = kAll - kFirst;
  const std::vector<float> values = ExactValues(kN * kAll, 3);
  const Source source(GetParam(), values);
  std::vector<float> part;
  for (int row = 0; row < kN; ++row) {
    for (int i = kFirst; i < kAll; ++i) part.push_back(values[static_cast<size_t>(row * kAll + i)]);
  }
  const Source part_source(GetParam(), part);
  for (Method method : {Method::kBF16, Method::kINT8}) {
    Block cut(PackedMatrixBytes(method, kN, kK)), whole(PackedMatrixBytes(method, kN, kK));
    PackAll(source.at(kFirst, kAll), method, kN, kK, cut);
    PackAll(part_source.at(0, kK), method, kN, kK, whole);
    EXPECT_EQ(std::memcmp(cut.data(), whole.data(), whole.size()), 0);
  }
}

TEST_P(PackEverySource, UnalignedSourceGivesTheSameBytes) {
  constexpr int kN = 5, kK = 37;
  const std::vector<float> values = ExactValues(kN * kK, 4);
  const Source source(GetParam(), values);
  const size_t bytes = values.size() * DTypeBytes(GetParam());
  std::vector<uint8_t> odd(bytes + 1);  // vectors are aligned, so the second byte is not
  std::memcpy(odd.data() + 1, source.at(0, kK).data, bytes);
  Block want(PackedMatrixBytes(Method::kBF16, kN, kK)), got(want.size());
  PackAll(source.at(0, kK), Method::kBF16, kN, kK, want);
  PackAll({GetParam(), odd.data() + 1, kK}, Method::kBF16, kN, kK, got);
  EXPECT_EQ(std::memcmp(want.data(), got.data(), want.size()), 0);
}

INSTANTIATE_TEST_SUITE_P(DTypes, PackEverySource,
                         ::testing::Values(DType::kBF16, DType::kF16, DType::kF32),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

TEST(PackMatrix, PanelByPanelEqualsAllAtOnce) {
  constexpr int kN = 70, kK = 45;
  const std::vector<float> values = RandomBf16Values(kN * kK, 5);
  const WeightSource source{DType::kF32, values.data(), kK};
  for (Method method : {Method::kBF16, Method::kINT8}) {
    Block whole(PackedMatrixBytes(method, kN, kK)), parts(whole.size());
    PackAll(source, method, kN, kK, whole);
    for (int panel : {4, 0, 2, 3, 1}) {
      PackMatrix(source, method, kN, kK, panel, panel + 1, parts.data());
    }
    EXPECT_EQ(std::memcmp(whole.data(), parts.data(), whole.size()), 0);
  }
}

TEST(PackMatrix, Int8TiesGoToTheEvenCode) {
  // With 127 in the row the scale is 1, so halves are ties.
  const std::vector<float> values = {127.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -127.0f, -126.5f};
  Block block(PackedMatrixBytes(Method::kINT8, 1, 8));
  PackAll({DType::kF32, values.data(), 8}, Method::kINT8, 1, 8, block);
  std::vector<int> codes;
  for (int i = 0; i < 8; ++i) codes.push_back(CodeAt(block, 0, i, 64));
  EXPECT_THAT(codes, ::testing::ElementsAre(127, 0, 2, 2, 0, -2, -127, -126));
}

TEST(PackMatrix, RoundsFloatsToBf16ToNearestEven) {
  const std::vector<float> values = {1.00390625f, 1.01171875f, -3.0e38f, 3.4e38f};
  Block block(PackedMatrixBytes(Method::kBF16, 1, 4));
  PackAll({DType::kF32, values.data(), 4}, Method::kBF16, 1, 4, block);
  EXPECT_EQ(Bf16At(block, 0, 0, 64), 0x3f80);  // 1 + 2^-8: tie to the even 1
  EXPECT_EQ(Bf16At(block, 0, 1, 64), 0x3f82);  // 1 + 3 * 2^-8: tie to the even 1 + 2^-6
  EXPECT_EQ(Bf16At(block, 0, 2, 64), ToBFloat16(-3.0e38f).bits);
  EXPECT_EQ(Bf16At(block, 0, 3, 64), 0x7f80);
}

TEST(PackMatrix, Int8RowThatIsNotFiniteHasScaleNanAndSparesItsNeighbours) {
  std::vector<float> values(3 * 4, 2.0f);
  values[5] = std::numeric_limits<float>::infinity();
  Block block(PackedMatrixBytes(Method::kINT8, 3, 4));
  PackAll({DType::kF32, values.data(), 4}, Method::kINT8, 3, 4, block);
  const PackedMatrix matrix = PackedMatrixAt(Method::kINT8, 3, 4, block.data());
  EXPECT_EQ(matrix.row_scales[0], 2.0f / 127.0f);
  EXPECT_TRUE(std::isnan(matrix.row_scales[1]));
  EXPECT_EQ(matrix.row_scales[2], 2.0f / 127.0f);
  EXPECT_EQ(CodeAt(block, 2, 3, 64), 127);
}

}  // namespace
}  // namespace atelier
