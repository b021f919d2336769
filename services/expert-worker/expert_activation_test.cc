#include "services/expert-worker/expert_activation.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/base/clock.h"
#include "libs/checkpoint/expert_biases.h"
#include "libs/kernels/kernel_table.h"
#include "libs/model/reference.h"
#include "libs/testing/executor_fixture.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/synthetic_checkpoint.h"
#include "libs/testing/temp_dir.h"
#include "services/expert-worker/executor.h"
#include "services/expert-worker/expert_store.h"

namespace atelier {
namespace {

using ::atelier::testing::StatusIs;
using ::testing::HasSubstr;

constexpr int kHidden = 256, kInner = 136, kNumExperts = 4, kLayer = 1, kSlices = 3;

// A model without dense layers whose experts have biases and the form with alpha, limit and offset;
// I 136 is cut into 48, 48 and 40 columns.
class ExpertActivationTest : public ::testing::Test {
 protected:
  void SetUp() override {
    spec_.config_json = testing::TinyQwen3MoeConfig(
        R"({"num_hidden_layers": 2, "num_experts": 4, "moe_intermediate_size": 136,
            "hidden_act": "swigluoai", "swiglu_limit": 0.6, "mlp_bias": true})");
    // So that limits and biases matter beside the products.
    spec_.weight_scale = 0.08;
    Topology topology;
    topology.nodes = {{0, {0, 1}, 0}};
    ATELIER_ASSERT_OK_AND_ASSIGN(arena_,
                                 NodeArena::Create({.pin_threads = false}, topology, logger_));
  }

  void Open() {
    testing::WriteSyntheticCheckpoint(dir_.path(), spec_);
    ATELIER_ASSERT_OK_AND_ASSIGN(checkpoint_, Checkpoint::Open(dir_.path()));
  }

  absl::StatusOr<std::unique_ptr<ExpertStore>> Load(Method method) {
    ExpertStoreOptions options;
    options.methods = UniformMethods(checkpoint_->config(), method);
    for (int slice = 0; slice < kSlices; ++slice) {
      options.shards.push_back({{}, 0, kNumExperts, slice, kSlices});
    }
    return ExpertStore::Load(*checkpoint_, options, *arena_, clock_, logger_);
  }

  testing::TempDir dir_;
  testing::SyntheticSpec spec_;
  Logger logger_;
  SystemClock clock_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<NodeArena> arena_;
};

std::vector<float> Floats(const Checkpoint& checkpoint, const std::string& name) {
  const TensorView tensor = checkpoint.Find(name).value();
  std::vector<float> values(tensor.data.size() / 2);
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, tensor.data.data() + 2 * i, 2);
    values[i] = ToFloat(BFloat16{bits});
  }
  return values;
}

TEST_F(ExpertActivationTest, SlicesTakeTheirPartOfTheBiasesAndTheFirstTakesDowns) {
  ASSERT_NO_FATAL_FAILURE(Open());
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto store, Load(Method::kBF16));
  for (int slice = 0; slice < kSlices; ++slice) {
    const int begin = slice * 48, width = slice < 2 ? 48 : 40;
    const ExpertView& view = store->expert(slice, kLayer, 2);
    EXPECT_EQ(view.activation, (Activation{1.702f, 0.6f, false, 1.0f}));
    const std::string prefix = "model.layers.1.mlp.experts.2.";
    const std::vector<float> gate = Floats(*checkpoint_, prefix + "gate_proj.bias");
    const std::vector<float> up = Floats(*checkpoint_, prefix + "up_proj.bias");
    EXPECT_TRUE(std::equal(view.gate_bias, view.gate_bias + width, gate.begin() + begin));
    EXPECT_TRUE(std::equal(view.up_bias, view.up_bias + width, up.begin() + begin));
    for (int i = width; i < 48; ++i) EXPECT_EQ(view.gate_bias[i], 0.0f);
    if (slice > 0) {
      EXPECT_EQ(view.down_bias, nullptr);
      continue;
    }
    const std::vector<float> down = Floats(*checkpoint_, prefix + "down_proj.bias");
    EXPECT_TRUE(std::equal(down.begin(), down.end(), view.down_bias));
  }
}

// One expert for one row in double, and how far BF16 may be off, by docs/numerics.md with every
// magnitude taken at its largest.
struct Reference {
  std::vector<float> y;
  double bound = 0;
};

Reference ReferenceOf(const Checkpoint& checkpoint, int expert, const std::vector<float>& x) {
  const std::string prefix = absl::StrCat("model.layers.1.mlp.experts.", expert, ".");
  const std::vector<float> gate = Floats(checkpoint, prefix + "gate_proj.weight");
  const std::vector<float> up = Floats(checkpoint, prefix + "up_proj.weight");
  const std::vector<float> down = Floats(checkpoint, prefix + "down_proj.weight");
  const ExpertBiases biases = FindExpertBiases(checkpoint, kLayer, expert).value();
  const Activation& form = checkpoint.config().moe.activation;
  Reference result;
  result.y = reference::ExpertFfn({{gate, up, down}, form, biases.gate, biases.up, biases.down}, x);
  const auto largest_row = [](const std::vector<float>& matrix, const std::vector<float>& with) {
    double largest = 0;
    for (size_t row = 0; row < matrix.size(); row += with.size()) {
      double sum = 0;
      for (size_t k = 0; k < with.size(); ++k) sum += std::fabs(double{matrix[row + k]} * with[k]);
      largest = std::max(largest, sum);
    }
    return largest;
  };
  const double u = 0x1p-24, sums = std::max(largest_row(gate, x), largest_row(up, x)) + 1;
  const double product_error = (kHidden + 3) * u * sums;
  const double h = double{form.limit} * (double{form.limit} + 1);
  const double h_error = 1.1 * product_error * 2 * (double{form.limit} + 1) + 0x1p-8 * (h + 1);
  const double down_sum = largest_row(down, std::vector<float>(kInner, 1.0f));
  result.bound = down_sum * (h_error + (kInner + 3) * u * (h + h_error)) + 4 * u;
  return result;
}

TEST_F(ExpertActivationTest, SlicesAddUpToTheReference) {
  ASSERT_NO_FATAL_FAILURE(Open());
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto store, Load(Method::kBF16));
  const KernelTable kernels = KernelTable::Select(CpuFeatures::Detect(), CpuIsa::kAuto).value();
  testing::TestBatch batch = testing::TestLayer{kLayer, kHidden, kNumExperts}.RandomBatch(4, 1, 3);
  batch.ids = {0, 1, 2, 3};
  std::fill(batch.weights.begin(), batch.weights.end(), 1.0f);
  const testing::ForwardResult got =
      testing::RunForward(*CreateExecutor(*store, kernels, *arena_), kSlices, batch);
  for (int token = 0; token < 4; ++token) {
    const Reference want = ReferenceOf(*checkpoint_, token, batch.Row(token));
    for (size_t c = 0; c < kHidden; ++c) {
      const size_t at = static_cast<size_t>(token) * kHidden + c;
      const double sum =
          double{got.shards[0][at]} + double{got.shards[1][at]} + double{got.shards[2][at]};
      ASSERT_NEAR(sum, want.y[c], want.bound) << "token " << token << " column " << c;
    }
    // The bound means something: what the biases add is larger.
    EXPECT_LT(want.bound, 0.25 * std::fabs(*std::max_element(want.y.begin(), want.y.end())));
  }
}

TEST_F(ExpertActivationTest, MemoryOfBiasesIsCountedBeforehand) {
  ASSERT_NO_FATAL_FAILURE(Open());
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto store, Load(Method::kINT8));
  int64_t matrices = 0;
  for (const int width : {48, 48, 40}) {
    matrices += 2 * static_cast<int64_t>(PackedMatrixBytes(Method::kINT8, width, kHidden)) +
                static_cast<int64_t>(PackedMatrixBytes(Method::kINT8, kHidden, width));
  }
  const int64_t biases = (2 * (48 + 48 + 48) + kHidden) * 4;
  EXPECT_EQ(store->bytes(), 2 * kNumExperts * (matrices + biases));
}

TEST_F(ExpertActivationTest, MissingBiasIsNamedBeforeAnythingIsAllocated) {
  testing::SyntheticSpec without = spec_;
  without.config_json = testing::TinyQwen3MoeConfig(
      R"({"num_hidden_layers": 2, "num_experts": 4, "moe_intermediate_size": 136})");
  testing::WriteSyntheticCheckpoint(dir_.path(), without);
  std::ofstream(dir_.File("config.json")) << spec_.config_json;
  ATELIER_ASSERT_OK_AND_ASSIGN(checkpoint_, Checkpoint::Open(dir_.path()));
  EXPECT_THAT(Load(Method::kBF16),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("model.layers.0.mlp.experts.0.gate_proj.bias")));
}

}  // namespace
}  // namespace atelier
