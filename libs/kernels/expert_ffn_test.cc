#include "libs/kernels/expert_ffn.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "libs/kernels/kernel_table.h"
#include "libs/model/reference.h"
#include "libs/testing/packed_weights.h"
#include "libs/testing/supported_kernels.h"

namespace atelier {
namespace {

using testing::GuardedBuffer;
using testing::KernelName;
using testing::PackedWeights;
using testing::PreparedRows;
using testing::RandomBf16Values;
using testing::SupportedKernels;
using testing::SupportedPlainKernels;

constexpr double kFloatRounding = 0x1p-24;  // largest relative error of one fp32 operation
constexpr double kBf16Rounding = 0x1p-8;    // of rounding to bf16
constexpr double kSwiGluError = 0x1p-21;    // of SwiGlu, relative to the result
constexpr double kSmallestNormal = 0x1p-126;

double SwiGluReference(double gate, double up) { return gate / (1 + std::exp(-gate)) * up; }

TEST(SwiGlu, IsWithinItsBoundOverTheWholeRange) {
  std::vector<float> gates;
  for (float gate = -120.0f; gate < 120.0f; gate += 0.0371f) gates.push_back(gate);
  for (float gate : {0.0f, -0.0f, 1e-30f, -1e-30f, 1e30f, -1e30f, 87.0f, 88.0f, -87.0f, -88.0f}) {
    gates.push_back(gate);
  }
  for (float up : {1.0f, -0.37f, 1e-3f, 1e6f}) {
    std::vector<float> result = gates;
    const std::vector<float> ups(gates.size(), up);
    SwiGlu(result.data(), ups.data(), result.size());
    for (size_t i = 0; i < gates.size(); ++i) {
      const double want = SwiGluReference(gates[i], up);
      const double clamped = std::fabs(double{gates[i]} * up) * kSmallestNormal;
      ASSERT_LE(std::fabs(result[i] - want),
                kSwiGluError * std::fabs(want) + clamped + kSmallestNormal)
          << "gate " << gates[i] << " up " << up;
    }
  }
}

TEST(SwiGlu, ElementBitsDoNotDependOnPosition) {
  for (size_t count : {0, 1, 7, 15, 16, 17, 33, 100}) {
    const std::vector<float> gates = RandomBf16Values(count, 1, 4.0f);
    const std::vector<float> ups = RandomBf16Values(count, 2);
    GuardedBuffer<float> together(gates.data(), count);
    const GuardedBuffer<float> up(ups.data(), count);
    SwiGlu(together.data(), up.data(), count);
    for (size_t i = 0; i < count; ++i) {
      float alone = gates[i];
      SwiGlu(&alone, &ups[i], 1);
      EXPECT_EQ(std::memcmp(&alone, &together[i], sizeof(alone)), 0);
    }
  }
}

TEST(SwiGlu, WhatIsNotFiniteStaysSo) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  float gates[] = {kNan, 1.0f, kInfinity, -kInfinity, 3e38f, 1.0f};
  const float ups[] = {1.0f, kNan, 1.0f, 1.0f, 3e38f, kInfinity};
  SwiGlu(gates, ups, 6);
  for (float value : gates) EXPECT_FALSE(std::isfinite(value));
}

// An expert's weights and a few rows, held exactly by bf16; [I, H], [I, H], [H, I] and [rows, H].
struct Problem {
  int hidden, inner, rows;
  std::vector<float> gate, up, down, x;

  Problem(int hidden_size, int inner_size, int num_rows, uint32_t seed)
      : hidden(hidden_size), inner(inner_size), rows(num_rows) {
    const size_t count = static_cast<size_t>(hidden) * static_cast<size_t>(inner);
    gate = RandomBf16Values(count, seed, 1.5f / std::sqrt(static_cast<float>(hidden)));
    up = RandomBf16Values(count, seed + 1, 1.5f / std::sqrt(static_cast<float>(hidden)));
    down = RandomBf16Values(count, seed + 2, 1.0f / std::sqrt(static_cast<float>(inner)));
    x = RandomBf16Values(static_cast<size_t>(rows) * static_cast<size_t>(hidden), seed + 3);
  }
  std::vector<float> Row(int r) const {
    return std::vector<float>(x.begin() + r * hidden, x.begin() + (r + 1) * hidden);
  }
};

double LargestMagnitude(const std::vector<double>& values) {
  double largest = 0;
  for (double value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

// The error bounds of docs/numerics.md, with its names.
class ErrorBound {
 public:
  explicit ErrorBound(Method method) : method_(method) {}

  // delta_w or delta_x of a row of weights or activations.
  double Quantisation(double largest) const {
    if (method_ == Method::kBF16) return 0;
    return std::max(largest / 127, kSmallestNormal) * (0.5 + 127 * 0x1p-22);
  }

  // Of y = sum_k w[k] x[k], when x is known within delta_x.
  double Product(const float* w, const std::vector<double>& x,
                 const std::vector<double>& delta_x) const {
    double largest = 0, y = 0, input = 0, magnitude = 0;
    for (size_t k = 0; k < x.size(); ++k) largest = std::max(largest, std::fabs(double{w[k]}));
    const double delta_w = Quantisation(largest);
    for (size_t k = 0; k < x.size(); ++k) {
      y += w[k] * x[k];
      input += std::fabs(x[k]) * delta_w + delta_x[k] * std::fabs(w[k]) + delta_x[k] * delta_w;
      magnitude += (std::fabs(x[k]) + delta_x[k]) * (std::fabs(w[k]) + delta_w);
    }
    if (method_ == Method::kINT8) {
      return input + 4 * kFloatRounding * (std::fabs(y) + input) + kSmallestNormal;
    }
    const double k = static_cast<double>(x.size());
    const double sums = (k + 1) * kFloatRounding / (1 - (k + 1) * kFloatRounding);
    return input + sums * magnitude + 2 * k * kSmallestNormal;
  }

  // Of h = silu(gate) * up.
  static double Gated(double gate, double gate_error, double up, double up_error) {
    constexpr double kSteepestSilu = 1.1;
    const double silu = SwiGluReference(gate, 1);
    const double error =
        kSteepestSilu * gate_error * (std::fabs(up) + up_error) + std::fabs(silu) * up_error;
    return error + kSwiGluError * (std::fabs(silu * up) + error) + kSmallestNormal;
  }

  // delta_x of the intermediate row, from h and the error it has before it is rounded or quantised.
  std::vector<double> Requantised(const std::vector<double>& h, std::vector<double> error) const {
    std::vector<double> reach(h.size());
    for (size_t i = 0; i < h.size(); ++i) reach[i] = std::fabs(h[i]) + error[i];
    const double step = Quantisation(LargestMagnitude(reach));
    for (size_t i = 0; i < h.size(); ++i) {
      error[i] += method_ == Method::kBF16 ? kBf16Rounding * reach[i] + kSmallestNormal : step;
    }
    return error;
  }

 private:
  Method method_;
};

// Bound of every output of one row through the whole expert.
std::vector<double> ExpertBounds(Method method, const Problem& problem, int row) {
  const ErrorBound bound(method);
  const std::vector<float> x_row = problem.Row(row);
  const std::vector<double> x(x_row.begin(), x_row.end());
  const std::vector<double> delta_x(x.size(), bound.Quantisation(LargestMagnitude(x)));
  const std::vector<float> gate = reference::MatVec(problem.gate, x_row);
  const std::vector<float> up = reference::MatVec(problem.up, x_row);
  std::vector<double> h, error;
  for (size_t i = 0; i < gate.size(); ++i) {
    const size_t begin = i * x.size();
    h.push_back(SwiGluReference(gate[i], up[i]));
    // The reference rounds its results to float, too.
    const double gate_error = bound.Product(&problem.gate[begin], x, delta_x) +
                              kFloatRounding * std::fabs(double{gate[i]});
    const double up_error =
        bound.Product(&problem.up[begin], x, delta_x) + kFloatRounding * std::fabs(double{up[i]});
    error.push_back(ErrorBound::Gated(gate[i], gate_error, up[i], up_error));
  }
  const std::vector<double> delta_h = bound.Requantised(h, error);
  std::vector<double> bounds;
  for (size_t i = 0; i < x.size(); ++i) {
    bounds.push_back(bound.Product(&problem.down[i * h.size()], h, delta_h));
  }
  return bounds;
}

std::vector<float> RunProblem(const KernelEntry& entry, const Problem& problem) {
  const Method method = entry.method;
  const PackedWeights gate(method, problem.inner, problem.hidden, problem.gate);
  const PackedWeights up(method, problem.inner, problem.hidden, problem.up);
  const PackedWeights down(method, problem.hidden, problem.inner, problem.down);
  const PreparedRows rows(method, problem.x, problem.rows, problem.hidden);
  const ExpertView view{gate.matrix(), up.matrix(), down.matrix(), Activation::kSwiGlu};
  const size_t stride = static_cast<size_t>(down.matrix().num_panels()) * kPanelWidth;
  GuardedBuffer<float> out(static_cast<size_t>(problem.rows) * stride);
  RunExpert(KernelTable::ForEntry(entry), view, rows.rows(), out.data(), stride);
  std::vector<float> result;
  for (size_t r = 0; r < static_cast<size_t>(problem.rows); ++r) {
    result.insert(result.end(), out.data() + r * stride, out.data() + r * stride + problem.hidden);
  }
  return result;
}

class ExpertOnEveryIsa : public ::testing::TestWithParam<KernelEntry> {};

TEST_P(ExpertOnEveryIsa, IsWithinThePublishedBoundOfTheReference) {
  double worst = 0;
  for (auto [hidden, inner, rows] :
       {std::tuple{1, 1, 1}, {16, 16, 0}, {33, 17, 3}, {150, 90, 9}, {576, 96, 4}, {256, 768, 2}}) {
    const uint32_t seed = static_cast<uint32_t>(hidden * 1000 + inner);
    SCOPED_TRACE(::testing::Message() << "H=" << hidden << " I=" << inner << " seed=" << seed);
    const Problem problem(hidden, inner, rows, seed);
    const std::vector<float> out = RunProblem(GetParam(), problem);
    for (int r = 0; r < rows; ++r) {
      const std::vector<float> want =
          reference::SwiGluFfn({problem.gate, problem.up, problem.down}, problem.Row(r));
      const std::vector<double> bounds = ExpertBounds(GetParam().method, problem, r);
      for (int c = 0; c < hidden; ++c) {
        const double value = want[static_cast<size_t>(c)];
        const double error = std::fabs(out[static_cast<size_t>(r * hidden + c)] - value);
        const double bound = bounds[static_cast<size_t>(c)] + kFloatRounding * std::fabs(value);
        ASSERT_LE(error, bound) << "row " << r << " column " << c;
        worst = std::max(worst, error / bound);
      }
    }
  }
  RecordProperty("worst_fraction_of_bound", std::to_string(worst));
}

INSTANTIATE_TEST_SUITE_P(Kernels, ExpertOnEveryIsa, ::testing::ValuesIn(SupportedPlainKernels()),
                         KernelName);

class Int8ExpertOnEveryIsa : public ::testing::TestWithParam<KernelEntry> {};

TEST_P(Int8ExpertOnEveryIsa, IsBitEqualToScalar) {
  const Problem problem(150, 90, 9, 11);
  const KernelEntry scalar = SupportedKernels(Method::kINT8).back();
  ASSERT_STREQ(scalar.isa, "scalar");
  EXPECT_EQ(RunProblem(GetParam(), problem), RunProblem(scalar, problem));
}

INSTANTIATE_TEST_SUITE_P(Kernels, Int8ExpertOnEveryIsa,
                         ::testing::ValuesIn(SupportedKernels(Method::kINT8)), KernelName);

}  // namespace
}  // namespace atelier
