#include <memory>
#include <string>
#include <tuple>

#include "gtest/gtest.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/temp_dir.h"
#include "tests/golden/golden_file.h"
#include "tests/golden/model_under_test.h"
#include "tests/golden/random_weights.h"
#include "tests/golden/tolerance.h"

namespace atelier::golden {
namespace {

// A tiny model's checkpoint, written for the test.
class TinyModel {
 public:
  explicit TinyModel(const std::string& name) : golden_(LoadTinyGolden(name)) {
    EXPECT_EQ(WriteTinyCheckpoint(golden_, directory_.path()), golden_.weights_sha256)
        << "the weights differ from those that the reference saw";
    absl::StatusOr<std::unique_ptr<Checkpoint>> opened = Checkpoint::Open(directory_.path());
    EXPECT_THAT(opened, testing::IsOk());
    checkpoint_ = std::move(opened).value();
  }

  const TinyGolden& golden() const { return golden_; }
  const Checkpoint& checkpoint() const { return *checkpoint_; }
  const Sequence& sequence(const std::string& name) const {
    for (const Sequence& sequence : golden_.sequences) {
      if (sequence.name == name) return sequence;
    }
    ADD_FAILURE() << "no sequence " << name;
    return golden_.sequences.front();
  }

 private:
  TinyGolden golden_;
  testing::TempDir directory_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

std::unique_ptr<ModelUnderTest> Start(const TinyModel& tiny, const RunOptions& options) {
  absl::StatusOr<std::unique_ptr<ModelUnderTest>> model =
      ModelUnderTest::Create(tiny.checkpoint(), options);
  EXPECT_THAT(model, testing::IsOk());
  return std::move(model).value();
}

// Holds one sequence to its bounds. `min_clear`: least share of positions that must be comparable.
void ExpectWithinBounds(ModelUnderTest& model, const Sequence& sequence, int vocab_size,
                        Method method, double min_clear) {
  SequenceComparison comparison(sequence, vocab_size, method);
  ATELIER_ASSERT_OK(model.TeacherForce(sequence.tokens, sequence.first,
                                       [&](int position, absl::Span<const float> logits) {
                                         comparison.Add(position - sequence.first, logits);
                                       }));
  EXPECT_GE(comparison.clear_share(), min_clear) << comparison.Summary();
  EXPECT_GT(comparison.num_compared(), 0) << comparison.Summary();
  EXPECT_LE(comparison.sequence_error(), comparison.tolerance().sequence_error())
      << comparison.Summary();
  EXPECT_LE(comparison.worst_error(), comparison.tolerance().position_error())
      << comparison.Summary();
  EXPECT_EQ(comparison.wrong_top1(), 0) << comparison.Summary();
}

// The prompts were chosen so that routing is clear everywhere; greedy texts are as they are.
double MinClear(const Sequence& sequence) { return sequence.first == 0 ? 0.95 : 0.25; }

void ExpectWithinBounds(const TinyModel& tiny, const RunOptions& options) {
  const std::unique_ptr<ModelUnderTest> model = Start(tiny, options);
  for (const Sequence& sequence : tiny.golden().sequences) {
    ExpectWithinBounds(*model, sequence, tiny.golden().vocab_size, options.method,
                       MinClear(sequence));
  }
}

std::vector<float> AllLogits(ModelUnderTest& model, absl::Span<const int32_t> tokens) {
  std::vector<float> all;
  const absl::Status status =
      model.TeacherForce(tokens, 0, [&](int, absl::Span<const float> logits) {
        all.insert(all.end(), logits.begin(), logits.end());
      });
  EXPECT_THAT(status, testing::IsOk());
  return all;
}

class TinyModelOfMethod : public ::testing::TestWithParam<std::tuple<std::string, Method>> {
 protected:
  TinyModelOfMethod() : tiny_(std::get<0>(GetParam())) {}
  Method method() const { return std::get<1>(GetParam()); }

  TinyModel tiny_;
};

TEST_P(TinyModelOfMethod, LogitsAgreeWithTheReference) {
  ExpectWithinBounds(tiny_, {.method = method()});
}

TEST_P(TinyModelOfMethod, EverySliceCountAgreesWithTheReference) {
  const int experts = tiny_.checkpoint().config().moe.num_experts;
  for (int count : {2, 3, 5}) {
    SCOPED_TRACE(absl::StrCat(count, " slices"));
    RunOptions options{.method = method()};
    for (int i = 0; i < count; ++i) options.shards.push_back({{}, 0, experts, i, count});
    ExpectWithinBounds(tiny_, options);
  }
}

TEST_P(TinyModelOfMethod, SplitExpertsAgreeWithTheReference) {
  const int experts = tiny_.checkpoint().config().moe.num_experts;
  RunOptions options{.method = method(), .shards = {{{}, 0, 5, 0, 1}, {{}, 5, experts, 0, 1}}};
  ExpectWithinBounds(tiny_, options);
}

// Experts of one layer, all of them (no worker is asked), and a few of every layer.
std::vector<ExpertSet> DeviceChoices(const ModelConfig& config) {
  std::string all_of_one, some_of_all;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (!config.is_moe_layer[static_cast<size_t>(layer)]) continue;
    if (all_of_one.empty()) {
      all_of_one = absl::StrCat(layer, ": 0-", config.moe.num_experts - 1, "\n");
    }
    absl::StrAppend(&some_of_all, layer, ": 0,", 2 + layer % 2, "-", config.moe.num_experts / 2,
                    "\n");
  }
  return {ExpertSet::Parse(all_of_one, config).value(),
          ExpertSet::Parse(some_of_all, config).value()};
}

TEST_P(TinyModelOfMethod, ExpertsOnTheDeviceAgreeWithTheReference) {
  for (const ExpertSet& experts : DeviceChoices(tiny_.checkpoint().config())) {
    ExpectWithinBounds(tiny_, {.method = method(), .device_experts = experts});
  }
}

TEST_P(TinyModelOfMethod, ChunkSizeChangesNoBitOfExpertsOnTheDevice) {
  const Sequence& sequence = tiny_.sequence("prompt_64");
  for (const ExpertSet& experts : DeviceChoices(tiny_.checkpoint().config())) {
    const auto logits_with = [&](int chunk, int threads) {
      const auto model = Start(tiny_, {.method = method(),
                                       .num_threads = threads,
                                       .max_tokens_per_step = chunk,
                                       .device_experts = experts});
      return AllLogits(*model, sequence.tokens);
    };
    const std::vector<float> whole = logits_with(64, 1);
    EXPECT_EQ(logits_with(1, 1), whole);
    EXPECT_EQ(logits_with(17, 3), whole);
  }
}

TEST_P(TinyModelOfMethod, ChunkSizeChangesNoBit) {
  const Sequence& sequence = tiny_.sequence("prompt_64");
  const auto logits_with = [&](int chunk) {
    const auto model = Start(tiny_, {.method = method(), .max_tokens_per_step = chunk});
    return AllLogits(*model, sequence.tokens);
  };
  const std::vector<float> whole = logits_with(64);
  for (int chunk : {1, 3, 17, 63}) EXPECT_EQ(logits_with(chunk), whole) << "chunk " << chunk;
}

TEST_P(TinyModelOfMethod, ThreadCountChangesNoBit) {
  const Sequence& sequence = tiny_.sequence("prompt_300");
  const auto logits_with = [&](int threads) {
    const auto model = Start(tiny_, {.method = method(), .num_threads = threads});
    return AllLogits(*model, sequence.tokens);
  };
  const std::vector<float> one = logits_with(1);
  for (int threads : {2, 3}) EXPECT_EQ(logits_with(threads), one) << threads << " threads";
}

TEST_P(TinyModelOfMethod, CompanyInTheBatchChangesNoBit) {
  const auto model = Start(tiny_, {.method = method()});
  std::vector<std::vector<int32_t>> sequences;
  for (const char* name : {"prompt_7", "prompt_300", "prompt_1", "prompt_64"}) {
    sequences.push_back(tiny_.sequence(name).tokens);
  }
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto together, model->TogetherInOneStep(sequences));
  for (size_t i = 0; i < sequences.size(); ++i) {
    EXPECT_EQ(together[i], AllLogits(*model, sequences[i])) << sequences[i].size() << " tokens";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Golden, TinyModelOfMethod,
    ::testing::Combine(::testing::Values("tiny_qwen3_moe", "tiny_qwen3_moe_dense_layer",
                                         "tiny_glm4_moe", "tiny_glm4_moe_qk_norm", "tiny_mixtral",
                                         "tiny_minimax_m2", "tiny_olmoe", "tiny_qwen2_moe"),
                       ::testing::Values(Method::kBF16, Method::kINT8)),
    [](const auto& info) {
      return absl::StrCat(std::get<0>(info.param), "_",
                          std::get<1>(info.param) == Method::kBF16 ? "bf16" : "int8");
    });

// The portable kernels are what other machines run.
TEST(TinyModelOnScalarKernels, LogitsAgreeWithTheReference) {
  for (Method method : {Method::kBF16, Method::kINT8}) {
    ExpectWithinBounds(TinyModel("tiny_glm4_moe"), {.method = method, .cpu_isa = CpuIsa::kScalar});
  }
}

// Proves that the bounds notice what they are for: one wrong matrix among 300.
TEST(TinyModelBounds, NoticeOneSwappedExpert) {
  TinyGolden golden = LoadTinyGolden("tiny_glm4_moe");
  for (RandomTensor& tensor : golden.tensors) {
    if (tensor.name == "model.layers.3.mlp.experts.2.down_proj.weight") tensor.scale *= -1;
  }
  testing::TempDir directory;
  EXPECT_NE(WriteTinyCheckpoint(golden, directory.path()), golden.weights_sha256);
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto checkpoint, Checkpoint::Open(directory.path()));
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto model, ModelUnderTest::Create(*checkpoint, {}));
  const Sequence& sequence = golden.sequences[3];
  SequenceComparison comparison(sequence, golden.vocab_size, Method::kBF16);
  ATELIER_ASSERT_OK(model->TeacherForce(
      sequence.tokens, sequence.first,
      [&](int position, absl::Span<const float> logits) { comparison.Add(position, logits); }));
  EXPECT_GT(comparison.sequence_error(), 2 * comparison.tolerance().sequence_error());
  EXPECT_GT(comparison.wrong_top1(), 0);
}

}  // namespace
}  // namespace atelier::golden
