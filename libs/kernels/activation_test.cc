#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "libs/kernels/expert_ffn.h"
#include "libs/kernels/kernel_table.h"
#include "libs/model/reference.h"
#include "libs/testing/gemm_runner.h"
#include "libs/testing/packed_weights.h"

namespace atelier {
namespace {

using testing::GuardedBuffer;
using testing::RandomBf16Values;
using testing::SameBits;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kFloatRounding = 0x1p-24;
constexpr double kSmallestNormal = 0x1p-126;

struct NamedForm {
  const char* name;
  Activation form;
};
constexpr NamedForm kForms[] = {{"swiglu", {}},
                                {"limited", {1.0f, 7.0f, false, 0.0f}},
                                {"alpha_and_offset", {1.702f, 7.0f, false, 1.0f}},
                                {"limited_on_both_sides", {1.5f, 5.0f, true, 1.0f}},
                                {"alpha_alone", {3.0f, kInfinity, false, 0.0f}}};

struct Level {
  const char* name;
  CpuIsa cap;
};
constexpr Level kLevels[] = {
    {"scalar", CpuIsa::kScalar}, {"avx2", CpuIsa::kAvx2}, {"avx512", CpuIsa::kAvx512}};

class ActivationOnEveryIsa : public ::testing::TestWithParam<std::tuple<NamedForm, Level>> {
 protected:
  void SetUp() override {
    const auto table = KernelTable::Select(CpuFeatures::Detect(), std::get<1>(GetParam()).cap);
    if (!table.ok()) GTEST_SKIP() << table.status();
    table_ = *table;
    expert_.activation = form();
  }
  const Activation& form() const { return std::get<0>(GetParam()).form; }

  std::vector<float> Run(const std::vector<float>& gate, const std::vector<float>& up,
                         size_t first_column = 0) const {
    GuardedBuffer<float> result(gate.data(), gate.size());
    const GuardedBuffer<float> ups(up.data(), up.size());
    Activate(table_, expert_, {result.data(), ups.data(), first_column, gate.size()});
    return std::vector<float>(result.data(), result.data() + gate.size());
  }

  KernelTable table_;
  ExpertView expert_;
};

// docs/numerics.md, "Activations".
double BoundOf(const Activation& form, double gate, double up) {
  const double argument = std::fabs(double{form.alpha} * std::min<double>(gate, form.limit));
  const double alpha_roundings = form.IsSwiGlu() ? 0 : (2 + argument) * kFloatRounding;
  const double reach = (1 + std::fabs(gate)) * (std::fabs(up) + 1);
  return (0x1p-21 + alpha_roundings) * std::fabs(reference::Gated(form, gate, up)) +
         (1 + reach) * kSmallestNormal;
}

TEST_P(ActivationOnEveryIsa, IsWithinItsBoundOverTheWholeRange) {
  std::vector<float> gates = {0.0f,  -0.0f,  1e-30f, -1e-30f, 1e30f, -1e30f, 87.0f,
                              88.0f, -87.0f, -88.0f, 7.0f,    -7.0f, 5.0f,   -5.0f};
  for (float gate = -120.0f; gate < 120.0f; gate += 0.0371f) gates.push_back(gate);
  for (float up : {1.0f, -1.0f, -0.37f, 1e-3f, 6.9f, -6.9f, 1e6f, -1e6f}) {
    const std::vector<float> result = Run(gates, std::vector<float>(gates.size(), up));
    for (size_t i = 0; i < gates.size(); ++i) {
      ASSERT_NEAR(result[i], reference::Gated(form(), gates[i], up), BoundOf(form(), gates[i], up))
          << "gate " << gates[i] << " up " << up;
    }
  }
}

TEST_P(ActivationOnEveryIsa, IsBitEqualToScalarWithAndWithoutBiases) {
  const KernelTable scalar = KernelTable::Select(CpuFeatures::Detect(), CpuIsa::kScalar).value();
  constexpr size_t kFirst = 16;
  for (size_t count : {0, 1, 7, 15, 16, 17, 33, 100}) {
    const std::vector<float> gates = RandomBf16Values(count, 1, 4.0f);
    const std::vector<float> ups = RandomBf16Values(count, 2, 4.0f);
    const std::vector<float> gate_bias = RandomBf16Values(kFirst + count, 3, 2.0f);
    const std::vector<float> up_bias = RandomBf16Values(kFirst + count, 4, 2.0f);
    for (const bool biased : {false, true}) {
      expert_.gate_bias = biased ? gate_bias.data() : nullptr;
      expert_.up_bias = biased ? up_bias.data() : nullptr;
      std::vector<float> want = gates;
      Activate(scalar, expert_, {want.data(), ups.data(), kFirst, count});
      const std::vector<float> got = Run(gates, ups, kFirst);
      EXPECT_TRUE(SameBits(want.data(), got.data(), count)) << count << " biased " << biased;
    }
  }
}

TEST_P(ActivationOnEveryIsa, ElementBitsDoNotDependOnPosition) {
  const std::vector<float> gates = RandomBf16Values(61, 1, 4.0f), ups = RandomBf16Values(61, 2);
  const std::vector<float> together = Run(gates, ups);
  for (size_t i = 0; i < gates.size(); ++i) {
    const std::vector<float> alone = Run({gates[i]}, {ups[i]});
    EXPECT_TRUE(SameBits(alone.data(), &together[i], 1)) << i;
  }
}

TEST_P(ActivationOnEveryIsa, AddsBiasesBeforeAnythingElse) {
  constexpr size_t kFirst = 1;  // the column whose bias is the first to be used
  const std::vector<float> gate_bias = {5.0f, 9.0f, 1.0f, -3.0f};
  const std::vector<float> up_bias = {3.0f, 9.0f, -2.0f, 0.5f};
  expert_.gate_bias = gate_bias.data();
  expert_.up_bias = up_bias.data();
  const std::vector<float> biased = Run({0.5f, 2.0f, 4.0f}, {0.25f, 1.0f, -8.0f}, kFirst);
  expert_.gate_bias = expert_.up_bias = nullptr;
  EXPECT_EQ(biased, Run({9.5f, 3.0f, 1.0f}, {9.25f, -1.0f, -7.5f}));
}

TEST_P(ActivationOnEveryIsa, NanPassesAndOnlyLimitsHideInfinity) {
  for (size_t i = 0; i < 40; ++i) {
    std::vector<float> gates(40, 1.0f), ups(40, 1.0f);
    gates[i] = kNan;
    std::vector<float> result = Run(gates, ups);
    for (size_t j = 0; j < 40; ++j) EXPECT_EQ(std::isnan(result[j]), i == j);
    gates[i] = 1.0f;
    ups[i] = kNan;
    result = Run(gates, ups);
    for (size_t j = 0; j < 40; ++j) EXPECT_EQ(std::isnan(result[j]), i == j);
  }
  const bool limited = form().limit < kInfinity;
  for (float value : Run({kInfinity, 1.0f, 3e38f}, {1.0f, -kInfinity, 3e38f})) {
    EXPECT_EQ(std::isfinite(value), limited);
  }
  EXPECT_EQ(std::isfinite(Run({-kInfinity}, {1.0f})[0]), form().clamp_gate_below);
}

INSTANTIATE_TEST_SUITE_P(Forms, ActivationOnEveryIsa,
                         ::testing::Combine(::testing::ValuesIn(kForms),
                                            ::testing::ValuesIn(kLevels)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + "_on_" +
                                  std::get<1>(info.param).name;
                         });

TEST(Activation, ClampsTheSidesThatItSays) {
  const Activation above{1.702f, 7.0f, false, 1.0f}, both{1.702f, 7.0f, true, 1.0f};
  const double top = 7 / (1 + std::exp(-1.702 * 7));
  EXPECT_NEAR(reference::Gated(above, 20, 3), top * 4, 1e-6);
  EXPECT_NEAR(reference::Gated(above, 20, 30), top * 8, 1e-6);
  EXPECT_NEAR(reference::Gated(above, 20, -30), top * -6, 1e-6);
  EXPECT_NEAR(reference::Gated(above, -20, 1), -20 * 2 / (1 + std::exp(1.702 * 20)), 1e-18);
  EXPECT_NEAR(reference::Gated(both, -20, 1), -7 * 2 / (1 + std::exp(1.702 * 7)), 1e-6);
}

TEST(SwiGlu, IsTheActivationWithoutSettings) {
  const KernelTable table = KernelTable::Select(CpuFeatures::Detect(), CpuIsa::kAuto).value();
  std::vector<float> gate = RandomBf16Values(100, 1, 4.0f), same = gate;
  const std::vector<float> up = RandomBf16Values(100, 2);
  SwiGlu(gate.data(), up.data(), gate.size());
  Activate(table, ExpertView{}, {same.data(), up.data(), 0, same.size()});
  EXPECT_TRUE(SameBits(gate.data(), same.data(), gate.size()));
}

}  // namespace
}  // namespace atelier
