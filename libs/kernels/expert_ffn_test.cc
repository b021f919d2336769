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
constexpr double kGatedError = 0x1p-21;     // of SwiGLU, relative to the result
constexpr double kSmallestNormal = 0x1p-126;

// The forms of docs/numerics.md, with and without biases.
struct Form {
  Activation activation;
  bool biased;
};
const Form kForms[] = {{{}, false},
                       {{}, true},
                       {{1.0f, 2.0f, false, 0.0f}, false},
                       {{1.702f, 2.0f, false, 1.0f}, true}};

// An expert's weights and a few rows, held exactly by bf16; [I, H], [I, H], [H, I] and [rows, H].
struct Problem {
  int hidden, inner, rows;
  std::vector<float> gate, up, down, x;
  Form form{};
  std::vector<float> gate_bias, up_bias, down_bias;  // [padded to a panel]; zeros where none

  Problem(int hidden_size, int inner_size, int num_rows, uint32_t seed, const Form& with = {})
      : hidden(hidden_size), inner(inner_size), rows(num_rows), form(with) {
    const size_t count = static_cast<size_t>(hidden) * static_cast<size_t>(inner);
    gate = RandomBf16Values(count, seed, 1.5f / std::sqrt(static_cast<float>(hidden)));
    up = RandomBf16Values(count, seed + 1, 1.5f / std::sqrt(static_cast<float>(hidden)));
    down = RandomBf16Values(count, seed + 2, 1.0f / std::sqrt(static_cast<float>(inner)));
    x = RandomBf16Values(static_cast<size_t>(rows) * static_cast<size_t>(hidden), seed + 3);
    gate_bias = Bias(inner, seed + 4);
    up_bias = Bias(inner, seed + 5);
    down_bias = Bias(hidden, seed + 6);
  }
  std::vector<float> Bias(int size, uint32_t seed) const {
    std::vector<float> bias(static_cast<size_t>(size), 0.0f);
    if (form.biased) bias = RandomBf16Values(static_cast<size_t>(size), seed);
    bias.resize((bias.size() + kPanelWidth - 1) / kPanelWidth * kPanelWidth, 0.0f);
    return bias;
  }
  std::vector<float> Expected(int row) const {
    const auto first = [](const std::vector<float>& bias, int size) {
      return absl::MakeConstSpan(bias).first(static_cast<size_t>(size));
    };
    return reference::ExpertFfn({{gate, up, down},
                                 form.activation,
                                 first(gate_bias, inner),
                                 first(up_bias, inner),
                                 first(down_bias, hidden)},
                                Row(row));
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

  // Of h, when gate and up are off by so much. Clamps make no difference larger.
  static double Gated(const Activation& form, double gate, double gate_error, double up,
                      double up_error) {
    constexpr double kSteepest = 1.1;
    const double slope = std::fabs(reference::Gated(form, gate, 1 - double{form.up_offset}));
    const double factor = std::min(std::fabs(up), double{form.limit}) + double{form.up_offset};
    const double error = kSteepest * gate_error * (factor + up_error) + slope * up_error;
    const double rounding =
        kGatedError + (2 + double{form.alpha} * std::fabs(gate)) * kFloatRounding;
    return error + rounding * (slope * factor + error) + kSmallestNormal;
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
  const Activation& form = problem.form.activation;
  std::vector<float> gate = reference::MatVec(problem.gate, x_row);
  std::vector<float> up = reference::MatVec(problem.up, x_row);
  std::vector<double> h, error;
  for (size_t i = 0; i < gate.size(); ++i) {
    const size_t begin = i * x.size();
    // The reference rounds its results to float, too, and a bias is one more addition.
    const double g = double{gate[i]} + double{problem.gate_bias[i]};
    const double u = double{up[i]} + double{problem.up_bias[i]};
    double gate_error = bound.Product(&problem.gate[begin], x, delta_x) +
                        kFloatRounding * std::fabs(double{gate[i]});
    double up_error =
        bound.Product(&problem.up[begin], x, delta_x) + kFloatRounding * std::fabs(double{up[i]});
    gate_error += kFloatRounding * (std::fabs(g) + gate_error);
    up_error += kFloatRounding * (std::fabs(u) + up_error);
    h.push_back(reference::Gated(form, g, u));
    error.push_back(ErrorBound::Gated(form, g, gate_error, u, up_error));
  }
  const std::vector<double> delta_h = bound.Requantised(h, error);
  std::vector<double> bounds;
  for (size_t i = 0; i < x.size(); ++i) {
    const double error_of_down = bound.Product(&problem.down[i * h.size()], h, delta_h);
    double y = double{problem.down_bias[i]};
    for (size_t k = 0; k < h.size(); ++k) y += double{problem.down[i * h.size() + k]} * h[k];
    bounds.push_back(error_of_down + kFloatRounding * (std::fabs(y) + error_of_down));
  }
  return bounds;
}

std::vector<float> RunProblem(const KernelEntry& entry, const Problem& problem) {
  const Method method = entry.method;
  const PackedWeights gate(method, problem.inner, problem.hidden, problem.gate);
  const PackedWeights up(method, problem.inner, problem.hidden, problem.up);
  const PackedWeights down(method, problem.hidden, problem.inner, problem.down);
  const PreparedRows rows(method, problem.x, problem.rows, problem.hidden);
  ExpertView view{gate.matrix(), up.matrix(), down.matrix(), problem.form.activation};
  if (problem.form.biased) {
    view.gate_bias = problem.gate_bias.data();
    view.up_bias = problem.up_bias.data();
    view.down_bias = problem.down_bias.data();
  }
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

// The largest fraction of its bound by which a result is off; fails where it is above 1.
double WorstOf(const KernelEntry& entry, const Problem& problem) {
  const std::vector<float> out = RunProblem(entry, problem);
  double worst = 0;
  for (int r = 0; r < problem.rows; ++r) {
    const std::vector<float> want = problem.Expected(r);
    const std::vector<double> bounds = ExpertBounds(entry.method, problem, r);
    for (int c = 0; c < problem.hidden; ++c) {
      const double value = want[static_cast<size_t>(c)];
      const double error = std::fabs(out[static_cast<size_t>(r * problem.hidden + c)] - value);
      const double bound = bounds[static_cast<size_t>(c)] + kFloatRounding * std::fabs(value);
      EXPECT_LE(error, bound) << "row " << r << " column " << c;
      worst = std::max(worst, error / bound);
    }
  }
  return worst;
}

TEST_P(ExpertOnEveryIsa, IsWithinThePublishedBoundOfTheReference) {
  double worst = 0;
  for (auto [hidden, inner, rows] :
       {std::tuple{1, 1, 1}, {16, 16, 0}, {33, 17, 3}, {150, 90, 9}, {576, 96, 4}, {256, 768, 2}}) {
    const uint32_t seed = static_cast<uint32_t>(hidden * 1000 + inner);
    for (const Form& form : kForms) {
      SCOPED_TRACE(::testing::Message()
                   << "H=" << hidden << " I=" << inner << " seed=" << seed
                   << " alpha=" << form.activation.alpha << " limit=" << form.activation.limit);
      worst = std::max(worst, WorstOf(GetParam(), Problem(hidden, inner, rows, seed, form)));
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
