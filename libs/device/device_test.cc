#include "libs/device/device.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/device/cpu/cpu_device.h"
#include "libs/model/reference.h"
#include "libs/testing/status_matchers.h"

namespace atelier {
namespace {

using Vector = std::vector<float>;

Vector Random(size_t count, unsigned seed, float deviation = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, deviation);
  Vector values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

Vector RoundedToBf16(Vector values) {
  for (float& value : values) value = ToFloat(ToBFloat16(value));
  return values;
}

// Every operation on each instruction set that the host has, in both modes.
struct Setup {
  CpuIsa isa;
  CpuDeviceOptions::Mode mode;
};

class DeviceOps : public ::testing::TestWithParam<Setup> {
 protected:
  void SetUp() override {
    CpuDeviceOptions options;
    options.num_threads = 2;
    options.cpu_isa = GetParam().isa;
    options.mode = GetParam().mode;
    auto device = CreateCpuDevice(options);
    if (!device.ok()) GTEST_SKIP() << device.status();
    device_ = std::move(device).value();
    stream_ = device_->CreateStream();
  }
  void Finish() { ATELIER_ASSERT_OK(stream_->Synchronize()); }
  // The device's form of a row-major fp32 matrix.
  std::unique_ptr<DeviceMatrix> Load(const Vector& values, int rows, int columns) {
    return device_->LoadMatrix({HostMatrix{DType::kF32, values.data(), rows, columns}}).value();
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceStream> stream_;
};

TEST_P(DeviceOps, AddWeightedRowsAddsToTheNamedRowsOnly) {
  constexpr size_t kWidth = 37, kRows = 5;
  const Vector x = Random(3 * kWidth, 1), before = Random(kRows * kWidth, 2);
  const std::vector<int32_t> indices = {4, 0, 2};
  const Vector weights = {0.25f, -1.5f, 0.1f};
  Vector out = before;
  stream_->AddWeightedRows({x.data(), indices.data(), weights.data(), out.data(), 3, kWidth});
  Finish();
  for (size_t row = 0; row < kRows; ++row) {
    const auto found = std::find(indices.begin(), indices.end(), static_cast<int32_t>(row));
    for (size_t j = 0; j < kWidth; ++j) {
      const double old = before[row * kWidth + j];
      if (found == indices.end()) {
        EXPECT_EQ(out[row * kWidth + j], before[row * kWidth + j]);
        continue;
      }
      const auto at = static_cast<size_t>(found - indices.begin());
      const double product = double{weights[at]} * double{x[at * kWidth + j]};
      // One rounding of the product, one of the sum.
      EXPECT_NEAR(out[row * kWidth + j], old + product,
                  (std::abs(old) + 2 * std::abs(product)) * std::ldexp(1.0, -24))
          << row << " " << j;
    }
  }
}

TEST_P(DeviceOps, ZeroComesInOrder) {
  Vector values(9, 1.0f);
  const Vector ones(9, 1.0f);
  stream_->Add({values.data(), ones.data(), 9});
  stream_->Zero(values.data(), 8 * sizeof(float));
  Finish();
  EXPECT_THAT(values, ::testing::ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 2));
}

TEST_P(DeviceOps, LinearMatchesReferenceOnOddShapes) {
  for (auto [rows, n, k] :
       {std::array{1, 1, 1}, {3, 15, 33}, {17, 16, 64}, {5, 100, 200}, {33, 515, 72}}) {
    const size_t width = static_cast<size_t>(k), columns = static_cast<size_t>(n);
    const Vector weight = RoundedToBf16(Random(columns * width, 1));
    const Vector bias = Random(columns, 2);
    const size_t x_stride = width + 3, out_stride = columns + 2;
    const Vector x = Random(static_cast<size_t>(rows) * x_stride, 3);
    Vector out(static_cast<size_t>(rows) * out_stride, -7);
    const auto matrix = Load(weight, n, k);
    EXPECT_EQ(matrix->rows(), n);
    EXPECT_EQ(matrix->columns(), k);
    stream_->Linear({x.data(), x_stride, matrix.get(), bias.data(), out.data(), out_stride, rows});
    Finish();
    for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
      const Vector row =
          RoundedToBf16(Vector(x.begin() + static_cast<std::ptrdiff_t>(r * x_stride),
                               x.begin() + static_cast<std::ptrdiff_t>(r * x_stride + width)));
      const Vector expected = reference::MatVec(weight, row, bias);
      for (size_t c = 0; c < columns; ++c) {
        double magnitude = std::abs(bias[c]);
        for (size_t j = 0; j < width; ++j) magnitude += std::abs(weight[c * width + j] * row[j]);
        // fp32 sums of k products in any order (Higham, 2002, section 3.1), and the bias.
        ASSERT_NEAR(out[r * out_stride + c], expected[c], (k + 2) * 0x1p-24 * magnitude)
            << r << "," << c;
      }
      EXPECT_EQ(out[r * out_stride + columns], -7) << "written beyond column n";
    }
  }
}

TEST_P(DeviceOps, StackedPartsAreOneMatrix) {
  const Vector a = RoundedToBf16(Random(7 * 20, 4)), b = RoundedToBf16(Random(13 * 20, 5));
  Vector both = a;
  both.insert(both.end(), b.begin(), b.end());
  const auto stacked = device_->LoadMatrix(
      {HostMatrix{DType::kF32, a.data(), 7, 20}, HostMatrix{DType::kF32, b.data(), 13, 20}});
  ATELIER_ASSERT_OK(stacked);
  const auto whole = Load(both, 20, 20);
  const Vector x = Random(20, 6);
  Vector from_stacked(20), from_whole(20);
  stream_->Linear({x.data(), 20, stacked->get(), nullptr, from_stacked.data(), 20, 1});
  stream_->Linear({x.data(), 20, whole.get(), nullptr, from_whole.data(), 20, 1});
  Finish();
  EXPECT_EQ(from_stacked, from_whole);
}

TEST_P(DeviceOps, NormsMatchReference) {
  constexpr int kRows = 3, kHeads = 5, kDim = 24;
  const Vector weight = Random(kDim, 7);
  Vector x = Random(kRows * (kHeads + 1) * kDim, 8), out(kRows * kDim);
  const Vector original = x;
  stream_->RmsNorm({original.data(), weight.data(), out.data(), kRows, kDim, 1e-5f});
  stream_->HeadNorm({x.data(), (kHeads + 1) * kDim, weight.data(), kRows, kHeads, kDim, 1e-5f});
  Finish();
  const auto part = [&](const Vector& values, size_t begin) {
    return absl::MakeConstSpan(values).subspan(begin, kDim);
  };
  for (size_t r = 0; r < kRows; ++r) {
    const Vector expected = reference::RmsNorm(part(original, r * kDim), weight, 1e-5f);
    for (size_t j = 0; j < kDim; ++j)
      EXPECT_NEAR(out[r * kDim + j], expected[j], std::abs(expected[j]) * 0x1p-22);
    for (size_t h = 0; h <= kHeads; ++h) {
      const size_t begin = (r * (kHeads + 1) + h) * kDim;
      const Vector head = h < kHeads
                              ? reference::RmsNorm(part(original, begin), weight, 1e-5f)
                              : Vector(part(original, begin).begin(), part(original, begin).end());
      for (size_t j = 0; j < kDim; ++j)
        EXPECT_NEAR(x[begin + j], head[j], std::abs(head[j]) * 0x1p-22);
    }
  }
}

TEST_P(DeviceOps, RopeMatchesReferenceAtFarPositions) {
  constexpr int kHeads = 2, kDim = 16;
  for (int rotary : {2, 8, 16}) {
    for (bool interleaved : {false, true}) {
      const std::vector<int32_t> positions = {0, 1, 131071};
      Vector x = Random(3 * kHeads * kDim, 9), cos_sin(3 * static_cast<size_t>(rotary));
      Vector expected = x;
      stream_->RopeTable({positions.data(), cos_sin.data(), 3, rotary, 1e4});
      stream_->Rope(
          {x.data(), kHeads * kDim, cos_sin.data(), 3, kHeads, kDim, rotary, interleaved});
      Finish();
      for (size_t i = 0; i < 3 * kHeads; ++i) {
        reference::ApplyRope(absl::MakeSpan(expected).subspan(i * kDim, kDim), rotary, 1e4,
                             positions[i / kHeads], interleaved);
      }
      for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], expected[i], 1e-5f);
    }
  }
}

TEST_P(DeviceOps, GateRowsMultipliesEachRowByItsSigmoid) {
  Vector x = {1, 2, 3, -4, 5, -6, 7, 8, 9};
  const Vector gate = {0, 1000, -std::log(3.0f)};
  stream_->GateRows({x.data(), gate.data(), 3, 3});
  Finish();
  const Vector expected = {0.5f, 1, 1.5f, -4, 5, -6, 1.75f, 2, 2.25f};
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], expected[i], 1e-6f);
}

// Two sequences with tables that are out of order, in one batch of mixed lengths.
TEST_P(DeviceOps, PagedAttentionMatchesReference) {
  constexpr int kHeads = 6, kKvHeads = 2, kDim = 40, kBlock = 4, kBlocks = 12;
  AttentionConfig config;
  config.num_heads = kHeads;
  config.num_kv_heads = kKvHeads;
  config.head_dim = kDim;
  const std::vector<int32_t> tables = {7, 2, 11, 0, 5, 3, 9, 1};  // [2 sequences, 4]
  const std::vector<int> lengths = {13, 6};
  std::vector<BFloat16> keys(kBlocks * kKvHeads * kBlock * kDim), values(keys.size());
  const KvCacheView cache{keys.data(), values.data(), kKvHeads, kDim, kBlock};
  for (int s = 0; s < 2; ++s) {
    const int length = lengths[static_cast<size_t>(s)];
    const size_t kv_width = kKvHeads * kDim;
    const Vector q =
        Random(static_cast<size_t>(length) * kHeads * kDim, 10u + static_cast<unsigned>(s));
    const Vector k = RoundedToBf16(
        Random(static_cast<size_t>(length) * kv_width, 20u + static_cast<unsigned>(s)));
    const Vector v = RoundedToBf16(
        Random(static_cast<size_t>(length) * kv_width, 30u + static_cast<unsigned>(s)));
    std::vector<int64_t> slots;
    std::vector<int32_t> sequences, positions;
    for (int p = 0; p < length; ++p) {
      slots.push_back(int64_t{tables[static_cast<size_t>(4 * s + p / kBlock)]} * kBlock +
                      p % kBlock);
      sequences.push_back(s);
      positions.push_back(p);
    }
    Vector out(static_cast<size_t>(length) * kHeads * kDim);
    stream_->KvWrite({k.data(), v.data(), kv_width, slots.data(), cache, length});
    stream_->Attention({q.data(), kHeads * kDim, sequences.data(), positions.data(), tables.data(),
                        4, cache, out.data(), length, kHeads});
    Finish();
    const Vector expected = reference::Attention(config, q, k, v);
    // Scores of 40 products and at most 13 weighted values in fp32, exponentials good to 2 ulp:
    // about 1e-5 of values of order 1.
    for (size_t i = 0; i < out.size(); ++i)
      ASSERT_NEAR(out[i], expected[i], 2e-5f) << "sequence " << s << " element " << i;
  }
}

struct RouterCase {
  std::string name;
  MoeConfig config;
};

std::vector<RouterCase> RouterCases() {
  MoeConfig softmax;
  softmax.num_experts = 16;
  softmax.top_k = 4;
  MoeConfig unnormalized = softmax;
  unnormalized.normalize_weights = false;
  MoeConfig sigmoid = softmax;
  sigmoid.scoring = RouterScoring::kSigmoid;
  sigmoid.correction_bias = true;
  sigmoid.normalize_epsilon = 1e-20;
  sigmoid.routed_scaling_factor = 2.5;
  MoeConfig groups = sigmoid;
  groups.num_groups = 4;
  groups.top_k_groups = 2;
  MoeConfig all = softmax;
  all.top_k = 16;
  return {{"softmax", softmax},
          {"unnormalized", unnormalized},
          {"sigmoid", sigmoid},
          {"groups", groups},
          {"all", all}};
}

void ExpectRoutesAsReference(DeviceStream& stream, const MoeConfig& config, const Vector& logits,
                             const Vector& bias) {
  const int rows = static_cast<int>(logits.size()) / config.num_experts;
  const size_t top_k = static_cast<size_t>(config.top_k);
  std::vector<int32_t> ids(static_cast<size_t>(rows) * top_k);
  Vector weights(ids.size());
  stream.Route(
      {logits.data(), config.correction_bias ? bias.data() : nullptr, ids.data(), weights.data(),
       rows, config.num_experts, config.top_k, config.scoring == RouterScoring::kSigmoid,
       config.normalize_weights, static_cast<float>(config.normalize_epsilon),
       static_cast<float>(config.routed_scaling_factor), config.num_groups, config.top_k_groups});
  ATELIER_ASSERT_OK(stream.Synchronize());
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    const auto row = absl::MakeConstSpan(logits).subspan(
        r * static_cast<size_t>(config.num_experts), static_cast<size_t>(config.num_experts));
    const reference::RouterChoice expected = reference::Route(
        config, row,
        config.correction_bias ? absl::MakeConstSpan(bias) : absl::Span<const float>());
    for (size_t i = 0; i < top_k; ++i) {
      EXPECT_EQ(ids[r * top_k + i], expected.experts[i]) << "row " << r << " choice " << i;
      EXPECT_NEAR(weights[r * top_k + i], expected.weights[i],
                  std::abs(expected.weights[i]) * 1e-5f);
    }
  }
}

TEST_P(DeviceOps, RoutersMatchReference) {
  for (const RouterCase& router : RouterCases()) {
    SCOPED_TRACE(router.name);
    ExpectRoutesAsReference(*stream_, router.config, Random(16 * 40, 11), Random(16, 12, 0.3f));
  }
}

TEST_P(DeviceOps, RouterTiesGoToTheLowerIndexAndNanIsNeverPreferred) {
  Vector logits(32, 0.5f);
  logits[3] = std::numeric_limits<float>::quiet_NaN();
  logits[20] = 0.75f;
  for (const RouterCase& router : RouterCases()) {
    SCOPED_TRACE(router.name);
    ExpectRoutesAsReference(*stream_, router.config, logits, Vector(16, 0.125f));
  }
}

TEST_P(DeviceOps, SmallOperationsDoWhatTheySay) {
  const std::vector<BFloat16> table = {ToBFloat16(1), ToBFloat16(2), ToBFloat16(3), ToBFloat16(4)};
  const std::vector<int32_t> tokens = {1, 0, 1};
  Vector embedded(6), gathered(4), sum = {1, 2, 3}, swiglu(2), logits(2);
  std::vector<BFloat16> rounded(2);
  const Vector addend = {10, 20, 30}, gate_up = {1, -2, 3, 4}, exact = {1.0f + 0x1p-9f, -2};
  const std::vector<int32_t> rows = {2, 0};
  const Vector x = {1, 2}, router = {3, 4, 5, 6};
  stream_->Embed({tokens.data(), table.data(), embedded.data(), 3, 2});
  stream_->GatherRows({embedded.data(), rows.data(), gathered.data(), 2, 2});
  stream_->Add({sum.data(), addend.data(), 3});
  stream_->SwiGlu({gate_up.data(), swiglu.data(), 1, 2});
  stream_->ToBFloat16({exact.data(), rounded.data(), 2});
  stream_->RouterLogits({x.data(), router.data(), logits.data(), 1, 2, 2});
  Finish();
  EXPECT_EQ(embedded, (Vector{3, 4, 1, 2, 3, 4}));
  EXPECT_EQ(gathered, (Vector{3, 4, 3, 4}));
  EXPECT_EQ(sum, (Vector{11, 22, 33}));
  EXPECT_NEAR(swiglu[0], 3 * reference::Silu(1), 1e-6);
  EXPECT_NEAR(swiglu[1], 4 * reference::Silu(-2), 1e-6);
  EXPECT_EQ(ToFloat(rounded[0]), 1.0f);
  EXPECT_EQ(logits, (Vector{11, 17}));
}

std::vector<Setup> Setups() {
  std::vector<Setup> setups;
  for (CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvx512}) {
    for (auto mode : {CpuDeviceOptions::Mode::kImmediate, CpuDeviceOptions::Mode::kDeferred})
      setups.push_back({isa, mode});
  }
  return setups;
}

INSTANTIATE_TEST_SUITE_P(All, DeviceOps, ::testing::ValuesIn(Setups()), [](const auto& info) {
  return std::string(CpuIsaName(info.param.isa).data(), CpuIsaName(info.param.isa).size()) +
         (info.param.mode == CpuDeviceOptions::Mode::kDeferred ? "_deferred" : "_immediate");
});

TEST(DeferredStream, RunsWorkOnlyWhenSomebodyWaits) {
  CpuDeviceOptions options;
  options.mode = CpuDeviceOptions::Mode::kDeferred;
  const auto device = CreateCpuDevice(options).value();
  const auto first = device->CreateStream(), second = device->CreateStream();
  const auto event = device->CreateEvent();
  std::string order;
  first->HostFunction([&] { order += 'a'; });
  first->Record(*event);
  first->HostFunction([&] { order += 'b'; });
  second->Wait(*event);
  second->HostFunction([&] { order += 'c'; });
  EXPECT_EQ(order, "");
  ATELIER_EXPECT_OK(second->Synchronize());
  EXPECT_EQ(order, "ac");
  ATELIER_EXPECT_OK(event->Synchronize());
  EXPECT_EQ(order, "ac");
  ATELIER_EXPECT_OK(first->Synchronize());
  EXPECT_EQ(order, "acb");
}

TEST(CpuDevice, RefusesMemoryThatDoesNotExist) {
  const auto device = CreateCpuDevice({}).value();
  EXPECT_THAT(device->Allocate(MemoryKind::kDevice, size_t{1} << 60),
              testing::StatusIs(absl::StatusCode::kResourceExhausted,
                                ::testing::HasSubstr("1152921504606846976")));
}

TEST(CpuDevice, KnowsHowMuchMemoryIsFree) {
  const auto device = CreateCpuDevice({}).value();
  const int64_t physical = int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  EXPECT_GT(device->FreeBytes(), 0);
  EXPECT_LT(device->FreeBytes(), physical);
}

TEST(CpuDevice, RefusesANegativeThreadCount) {
  CpuDeviceOptions options;
  options.num_threads = -1;
  EXPECT_THAT(CreateCpuDevice(options),
              testing::StatusIs(absl::StatusCode::kInvalidArgument, ::testing::HasSubstr("-1")));
}

}  // namespace
}  // namespace atelier
