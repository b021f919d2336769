#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "libs/kernels/kernel_table.h"
#include "libs/testing/executor_fixture.h"
#include "libs/testing/packed_weights.h"
#include "libs/testing/random_quant_source.h"
#include "services/expert-worker/executor.h"
#include "services/expert-worker/expert_store.h"

namespace atelier {
namespace {

using testing::ForwardResult;
using testing::PackedWeights;
using testing::PreparedRows;
using testing::TestArena;
using testing::TestBatch;

constexpr int kHidden = 256, kInner = 512, kNumExperts = 5, kLayer = 2;
constexpr testing::TestLayer kTestLayer{kLayer, kHidden, kNumExperts};

struct Methods {
  Method gate, up, down;
};

// Random experts in one shard, each matrix in its own method; odd experts in others than even ones.
class MixedStore final : public ExpertStore {
 public:
  // Gives every expert an activation and biases.
  void SetActivation(const Activation& activation) {
    for (ExpertView& view : views_) {
      view.activation = activation;
      view.gate_bias = AddBias(kInner);
      view.up_bias = AddBias(kInner);
      view.down_bias = AddBias(kHidden);
    }
  }

  MixedStore(const Methods& even, const Methods& odd) {
    shards_ = {{{kLayer}, 0, kNumExperts, 0, 1}};
    for (int expert = 0; expert < kNumExperts; ++expert) {
      const Methods& methods = expert % 2 == 0 ? even : odd;
      const uint32_t seed = static_cast<uint32_t>(expert) * 10 + 1;
      ExpertView view;
      view.gate = Add(methods.gate, kInner, kHidden, seed);
      view.up = Add(methods.up, kInner, kHidden, seed + 1);
      view.down = Add(methods.down, kHidden, kInner, seed + 2);
      views_.push_back(view);
    }
  }

  const std::vector<ShardSpec>& shards() const override { return shards_; }
  Method method() const override { return views_[0].gate.method; }
  int hidden_size() const override { return kHidden; }
  int num_experts() const override { return kNumExperts; }
  bool HoldsLayer(int, int layer) const override { return layer == kLayer; }
  const ExpertView& expert(int, int, int expert) const override {
    return views_[static_cast<size_t>(expert)];
  }
  int64_t bytes() const override { return 0; }

 private:
  PackedMatrix Add(Method method, int n, int k, uint32_t seed) {
    weights_.emplace_back(new PackedWeights(testing::RandomWeights(method, n, k, seed)));
    return weights_.back()->matrix();
  }

  const float* AddBias(size_t count) {
    const auto seed = static_cast<uint32_t>(biases_.size() + 100);
    biases_.push_back(testing::RandomBf16Values(count, seed, 0.5f));
    return biases_.back().data();
  }

  std::vector<ShardSpec> shards_;
  std::vector<std::vector<float>> biases_;
  std::vector<std::unique_ptr<PackedWeights>> weights_;
  std::vector<ExpertView> views_;
};

// One row at a time, one expert after the other, each matrix with rows of its own method.
std::vector<float> Expected(const MixedStore& store, const KernelTable& kernels,
                            const TestBatch& batch) {
  std::vector<float> sums(batch.rows.size(), 0.0f);
  std::vector<float> product(kHidden);
  for (int t = 0; t < batch.num_tokens(); ++t) {
    for (int expert = 0; expert < kNumExperts; ++expert) {
      const ExpertView& view = store.expert(0, kLayer, expert);
      const PreparedRows gate(view.gate.method, batch.Row(t), 1, kHidden);
      const PreparedRows up(view.up.method, batch.Row(t), 1, kHidden);
      for (int j = t * batch.top_k; j < (t + 1) * batch.top_k; ++j) {
        if (batch.ids[static_cast<size_t>(j)] != expert) continue;
        RunExpertOnForms(kernels, view, {gate.rows(), up.rows()}, product.data(), kHidden);
        const float weight = batch.weights[static_cast<size_t>(j)];
        for (int i = 0; i < kHidden; ++i) {
          sums[static_cast<size_t>(t * kHidden + i)] += weight * product[static_cast<size_t>(i)];
        }
      }
    }
  }
  return sums;
}

class ExecutorOfMethods : public ::testing::TestWithParam<std::tuple<Methods, Methods>> {};

TEST_P(ExecutorOfMethods, ComputesEachMatrixInItsOwn) {
  const auto& [even, odd] = GetParam();
  const MixedStore store(even, odd);
  const KernelTable kernels = KernelTable::Select(CpuFeatures::Detect(), CpuIsa::kAuto).value();
  for (const int num_tokens : {1, 3, 70}) {
    const TestBatch batch =
        kTestLayer.RandomBatch(num_tokens, 3, static_cast<uint32_t>(num_tokens));
    const std::vector<float> want = Expected(store, kernels, batch);
    for (const int num_threads : {1, 4}) {
      SCOPED_TRACE(::testing::Message() << num_tokens << " tokens, " << num_threads << " threads");
      TestArena arena(num_threads);
      const ForwardResult got =
          testing::RunForward(*CreateExecutor(store, kernels, arena), 1, batch);
      EXPECT_EQ(got.num_not_finite, 0);
      ASSERT_NO_FATAL_FAILURE(testing::ExpectSameBits(want, got.shards[0], kHidden));
    }
  }
}

std::string NameOf(const Methods& methods) {
  return absl::StrCat(MethodName(methods.gate), "_", MethodName(methods.up), "_",
                      MethodName(methods.down));
}

constexpr Methods kQuants{Method::kQ4_K, Method::kQ6_K, Method::kQ5_0};
constexpr Methods kAllForms{Method::kBF16, Method::kINT8, Method::kINT4G32};
constexpr Methods kOtherOrder{Method::kINT8, Method::kMXFP4, Method::kBF16};

INSTANTIATE_TEST_SUITE_P(
    Methods, ExecutorOfMethods,
    ::testing::Values(std::tuple(kQuants, kQuants), std::tuple(kAllForms, kAllForms),
                      std::tuple(kQuants, kAllForms), std::tuple(kAllForms, kOtherOrder)),
    [](const auto& info) {
      return absl::StrCat(NameOf(std::get<0>(info.param)), "__", NameOf(std::get<1>(info.param)));
    });

TEST(Executor, AddsBiasesAndComputesTheActivationThatTheExpertHas) {
  const KernelTable kernels = KernelTable::Select(CpuFeatures::Detect(), CpuIsa::kAuto).value();
  TestArena arena(3);
  const TestBatch batch = kTestLayer.RandomBatch(70, 3, 9);
  for (const Method method : {Method::kBF16, Method::kINT8, Method::kMXFP4}) {
    MixedStore store({method, method, method}, {method, method, method});
    const std::vector<float> plain = Expected(store, kernels, batch);
    store.SetActivation({1.702f, 7.0f, false, 1.0f});
    const std::vector<float> want = Expected(store, kernels, batch);
    EXPECT_NE(plain, want);
    const ForwardResult got = testing::RunForward(*CreateExecutor(store, kernels, arena), 1, batch);
    ASSERT_NO_FATAL_FAILURE(testing::ExpectSameBits(want, got.shards[0], kHidden));
  }
}

// A row of every form with a NaN or an infinity poisons its own sums and no others.
TEST(Executor, KeepsTokensThatAreNotFiniteApartInEveryForm) {
  const KernelTable kernels = KernelTable::Select(CpuFeatures::Detect(), CpuIsa::kAuto).value();
  TestArena arena(2);
  for (const Method method : AllMethods()) {
    SCOPED_TRACE(MethodName(method));
    const Methods methods{method, method, method};
    const MixedStore store(methods, methods);
    TestBatch batch = kTestLayer.RandomBatch(20, 2, 5);
    batch.ids[2 * 2] = batch.ids[7 * 2] = 1;
    const std::unique_ptr<Executor> executor = CreateExecutor(store, kernels, arena);
    const ForwardResult clean = testing::RunForward(*executor, 1, batch);
    batch.rows[2 * kHidden + 17].bits = 0x7fc0;
    batch.rows[7 * kHidden + 255].bits = 0xff80;
    const ForwardResult dirty = testing::RunForward(*executor, 1, batch);
    EXPECT_EQ(clean.num_not_finite, 0);
    EXPECT_EQ(dirty.num_not_finite, 2);
    for (size_t i = 0; i < batch.rows.size(); ++i) {
      const size_t token = i / kHidden;
      const float value = dirty.shards[0][i];
      if (token == 2 || token == 7) {
        ASSERT_TRUE(std::isnan(value)) << token;
      } else {
        ASSERT_EQ(value, clean.shards[0][i]) << "token " << token;
      }
    }
  }
}

// The last rows of a batch as a frontend quantises them.
class QuantizedBatch {
 public:
  QuantizedBatch(const TestBatch& batch, ActivationForm form, int num_quantized)
      : view_(batch.view()) {
    const auto hidden = static_cast<size_t>(batch.hidden);
    const auto count = static_cast<size_t>(num_quantized);
    const size_t first = static_cast<size_t>(batch.num_tokens()) - count;
    const size_t num_scales = ScalesPerRow(form, batch.hidden);
    codes_.resize(count * hidden);
    scales_.resize(count * num_scales);
    for (size_t i = 0; i < count; ++i) {
      QuantizeRow(form, batch.rows.data() + (first + i) * hidden, batch.hidden,
                  codes_.data() + i * hidden, scales_.data() + i * num_scales);
    }
    // So that a row that is read in the wrong form is another.
    rows_.assign(batch.rows.begin(), batch.rows.begin() + static_cast<int64_t>(first * hidden));
    TokenBatch& tokens = view_.tokens;
    tokens.rows = rows_.data();
    tokens.num_quantized = num_quantized;
    tokens.quantized_form = form;
    tokens.codes = codes_.data();
    tokens.scales = scales_.data();
  }
  const LayerBatch& view() const { return view_; }

 private:
  LayerBatch view_;
  std::vector<BFloat16> rows_;
  std::vector<int8_t> codes_;
  std::vector<float> scales_;
};

TEST(Executor, ComputesTheSameBitsFromRowsThatWereQuantisedElsewhere) {
  const KernelTable kernels = KernelTable::Select(CpuFeatures::Detect(), CpuIsa::kAuto).value();
  TestArena arena(3);
  int methods_tried = 0;
  for (const Method method : AllMethods()) {
    const ActivationForm form = ActivationFormOf(method);
    if (form == ActivationForm::kBf16) continue;
    SCOPED_TRACE(MethodName(method));
    ++methods_tried;
    const MixedStore store({method, method, Method::kBF16}, {method, method, method});
    const std::unique_ptr<Executor> executor = CreateExecutor(store, kernels, arena);
    for (const int num_tokens : {1, 3, 70}) {
      TestBatch batch = kTestLayer.RandomBatch(num_tokens, 3, 31);
      batch.ids[0] = 1;
      // The first and the last, so that both a row of bf16 and a quantised one are not finite.
      batch.rows[kHidden - 1].bits = 0x7fc0;
      batch.rows[static_cast<size_t>((num_tokens - 1) * kHidden)].bits = 0xff80;
      const ForwardResult want = testing::RunForward(*executor, 1, batch);
      EXPECT_GT(want.num_not_finite, 0);
      for (const int num_quantized : {1, (num_tokens + 1) / 2, num_tokens}) {
        SCOPED_TRACE(::testing::Message() << num_quantized << " of " << num_tokens);
        const QuantizedBatch quantized(batch, form, num_quantized);
        const ForwardResult got = testing::RunForward(*executor, 1, quantized.view());
        EXPECT_EQ(got.num_not_finite, want.num_not_finite);
        ASSERT_NO_FATAL_FAILURE(testing::ExpectSameBits(want.shards[0], got.shards[0], kHidden));
      }
    }
  }
  EXPECT_EQ(methods_tried, 20);
}

}  // namespace
}  // namespace atelier
