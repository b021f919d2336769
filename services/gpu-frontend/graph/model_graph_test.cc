#include "services/gpu-frontend/graph/model_graph.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/device/cpu/cpu_device.h"
#include "libs/metrics/metrics.h"
#include "libs/testing/local_experts.h"
#include "libs/testing/reference_model.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/synthetic_checkpoint.h"
#include "libs/testing/synthetic_gguf.h"
#include "libs/testing/temp_dir.h"

namespace atelier {
namespace {

using ::testing::HasSubstr;
using testing::LocalExperts;
using testing::StatusIs;

struct RunnerOptions {
  int threads = 2;
  CpuDeviceOptions::Mode mode = CpuDeviceOptions::Mode::kImmediate;
  GraphOptions graph = {.kv_cache_bytes = int64_t{8} << 20,
                        .block_size = 16,
                        .max_tokens_per_step = 512,
                        .max_sequences = 8};
  Method method = Method::kBF16;
};

// A tiny model and everything it needs to run.
class Runner {
 public:
  Runner(const Checkpoint& checkpoint, const RunnerOptions& options) : metrics_(registry_) {
    CpuDeviceOptions device_options;
    device_options.num_threads = options.threads;
    device_options.mode = options.mode;
    device_ = CreateCpuDevice(device_options).value();
    experts_ = LocalExperts::Create(checkpoint, {.method = options.method, .shards = {}}).value();
    auto graph = ModelGraph::Create(checkpoint, *device_, *experts_, options.graph, clock_, logger_,
                                    metrics_);
    EXPECT_THAT(graph, testing::IsOk());
    graph_ = std::move(graph).value();
  }

  ModelGraph& graph() { return *graph_; }
  LocalExperts& experts() { return *experts_; }

 private:
  SystemClock clock_;
  Logger logger_{Severity::kError};
  prometheus::Registry registry_;
  FrontendMetrics metrics_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<LocalExperts> experts_;
  std::unique_ptr<ModelGraph> graph_;
};

// A sequence that owns KV blocks in descending order, so that a table that is ignored is noticed.
class Sequence {
 public:
  Sequence(std::vector<int32_t> tokens, int first_block, int block_size = 16)
      : tokens_(std::move(tokens)) {
    const int blocks = (static_cast<int>(tokens_.size()) + block_size - 1) / block_size;
    for (int i = 0; i < blocks; ++i) table_.push_back(first_block + blocks - 1 - i);
  }

  SequenceStep Next(int count, bool with_logits = true) {
    const SequenceStep step{absl::MakeConstSpan(tokens_).subspan(static_cast<size_t>(done_),
                                                                 static_cast<size_t>(count)),
                            done_, table_, with_logits ? count : 0};
    done_ += count;
    return step;
  }
  int size() const { return static_cast<int>(tokens_.size()); }
  int left() const { return size() - done_; }
  void Rewind(int to = 0) { done_ = to; }

 private:
  std::vector<int32_t> tokens_;
  std::vector<int32_t> table_;
  int done_ = 0;
};

std::vector<int32_t> RandomTokens(int count, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_int_distribution<int32_t> any(0, 511);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = any(generator);
  return tokens;
}

std::vector<float> StepLogits(ModelGraph& graph, std::vector<SequenceStep> steps) {
  size_t rows = 0;
  for (const SequenceStep& step : steps) rows += static_cast<size_t>(step.num_logits);
  std::vector<float> logits(rows * static_cast<size_t>(graph.vocab_size()));
  EXPECT_THAT(graph.Step(steps, absl::MakeSpan(logits)), testing::IsOk());
  return logits;
}

// All logits of a sequence fed in chunks of `chunk`.
std::vector<float> ChunkedLogits(ModelGraph& graph, Sequence& sequence, int chunk) {
  std::vector<float> all;
  while (sequence.left() > 0) {
    const std::vector<float> logits =
        StepLogits(graph, {sequence.Next(std::min(chunk, sequence.left()))});
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

double RelativeError(const std::vector<float>& actual, const std::vector<float>& expected) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(double{actual[i]} - double{expected[i]}, 2);
    norm += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(difference / norm);
}

// docs/numerics.md, "whole model": every layer rounds six values to bf16 (the input of qkv, k, v,
// the input of the output projection, the input of the FFN and its activations), the head one more;
// independent roundings add as squares, each at most 2^-9 of what it rounds. Weights that are not
// bf16 on disk are rounded too: one more per matrix of the chain.
double WholeModelBound(const ModelConfig& config, DType dtype = DType::kBF16) {
  const double per_layer = dtype == DType::kBF16 ? 6 : 6 + 5;
  return 0x1p-9 * std::sqrt(per_layer * config.num_layers + 1);
}

std::unique_ptr<Checkpoint> OpenSynthetic(const testing::TempDir& dir, const std::string& config,
                                          DType dtype = DType::kBF16, int num_files = 1) {
  testing::WriteSyntheticCheckpoint(
      dir.path(), {.config_json = config, .seed = 3, .dtype = dtype, .num_files = num_files});
  auto checkpoint = Checkpoint::Open(dir.path());
  EXPECT_THAT(checkpoint, testing::IsOk());
  return std::move(checkpoint).value();
}

testing::ForcedLogits WithChoicesOf(Runner& runner, const Checkpoint& checkpoint,
                                    const std::vector<int32_t>& tokens) {
  const size_t top_k = static_cast<size_t>(checkpoint.config().moe.top_k);
  return testing::ReferenceLogitsForChoices(checkpoint, tokens, [&](int layer, size_t token) {
    return absl::MakeConstSpan(runner.experts().RoutedIds(layer)).subspan(token * top_k, top_k);
  });
}

struct Variant {
  std::string name;
  std::string config;
  DType dtype = DType::kBF16;
};

class ModelGraphOnEveryVariant : public ::testing::TestWithParam<Variant> {};

TEST_P(ModelGraphOnEveryVariant, MatchesTheModelInDoubleWithinBound) {
  testing::TempDir dir;
  const auto checkpoint = OpenSynthetic(dir, GetParam().config, GetParam().dtype);
  Runner runner(*checkpoint, {});
  const std::vector<int32_t> tokens = RandomTokens(37, 5);
  Sequence sequence(tokens, 2);
  const std::vector<float> logits = ChunkedLogits(runner.graph(), sequence, 37);
  const testing::ForcedLogits expected = WithChoicesOf(runner, *checkpoint, tokens);
  const double bound = WholeModelBound(checkpoint->config(), GetParam().dtype);
  EXPECT_LT(RelativeError(logits, expected.logits), bound);
  EXPECT_LE(expected.worst_choice, bound);
}

std::vector<Variant> Variants() {
  using testing::TinyGlm4MoeConfig;
  using testing::TinyQwen3MoeConfig;
  return {{"qwen3", TinyQwen3MoeConfig()},
          {"qwen3_dense_layer", TinyQwen3MoeConfig(R"({"mlp_only_layers": [1]})")},
          {"qwen3_unnormalized", TinyQwen3MoeConfig(R"({"norm_topk_prob": false})")},
          {"qwen3_tied", TinyQwen3MoeConfig(R"({"tie_word_embeddings": true})")},
          {"qwen3_biases", TinyQwen3MoeConfig(R"({"attention_bias": true})")},
          {"qwen3_odd_sizes",
           TinyQwen3MoeConfig(
               R"({"hidden_size": 200, "moe_intermediate_size": 72, "vocab_size": 515})")},
          {"qwen3_fp16", TinyQwen3MoeConfig(), DType::kF16},
          {"qwen3_fp32", TinyQwen3MoeConfig(), DType::kF32},
          {"glm4", TinyGlm4MoeConfig()},
          {"glm4_no_qk_norm", TinyGlm4MoeConfig(R"({"use_qk_norm": false})")},
          {"glm4_groups", TinyGlm4MoeConfig(R"({"n_group": 4, "topk_group": 2})")},
          {"glm4_full_rotary", TinyGlm4MoeConfig(R"({"partial_rotary_factor": 1.0})")},
          {"glm4_unnormalized", TinyGlm4MoeConfig(R"({"norm_topk_prob": false})")},
          {"mixtral", TinyQwen3MoeConfig(R"({"model_type": "mixtral"})")},
          {"olmoe", TinyQwen3MoeConfig(R"({"model_type": "olmoe", "norm_topk_prob": false})")},
          {"minimax_m2", TinyQwen3MoeConfig(R"({"model_type": "minimax_m2", "rotary_dim": 32})")},
          {"qwen2_moe", TinyQwen3MoeConfig(R"({"model_type": "qwen2_moe", "qkv_bias": true,
               "norm_topk_prob": false, "shared_expert_intermediate_size": 320})")}};
}

void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

INSTANTIATE_TEST_SUITE_P(All, ModelGraphOnEveryVariant, ::testing::ValuesIn(Variants()),
                         [](const auto& info) { return info.param.name; });

class ModelGraphOfGguf : public ::testing::TestWithParam<Variant> {};

// The same logits from a GGUF file of the model, whose rows of q and k may be in another order.
TEST_P(ModelGraphOfGguf, MatchesTheModelInDoubleWithinBound) {
  testing::TempDir dir;
  const auto checkpoint = OpenSynthetic(dir, GetParam().config, GetParam().dtype);
  const ModelConfig& config = checkpoint->config();
  const std::string type = absl::AsciiStrToUpper(DTypeName(GetParam().dtype));
  testing::GgufOf(*checkpoint, [&](absl::string_view) { return type; }).Write(dir.File("m.gguf"));
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto gguf, Checkpoint::Open(dir.File("m.gguf")));
  Runner runner(*gguf, {});
  const std::vector<int32_t> tokens = RandomTokens(37, 5);
  Sequence sequence(tokens, 2);
  const std::vector<float> logits = ChunkedLogits(runner.graph(), sequence, 37);
  const testing::ForcedLogits expected = WithChoicesOf(runner, *checkpoint, tokens);
  EXPECT_LT(RelativeError(logits, expected.logits), WholeModelBound(config, GetParam().dtype));
}

// All but those whose properties have no key in GGUF's metadata.
std::vector<Variant> GgufVariants() {
  std::vector<Variant> variants = Variants();
  std::erase_if(variants, [](const Variant& variant) {
    return variant.name == "qwen3_dense_layer" || variant.name == "qwen3_biases" ||
           variant.name == "glm4_groups";
  });
  return variants;
}

INSTANTIATE_TEST_SUITE_P(All, ModelGraphOfGguf, ::testing::ValuesIn(GgufVariants()),
                         [](const auto& info) { return info.param.name; });

class ModelGraphTest : public ::testing::Test {
 protected:
  testing::TempDir dir_;
  std::unique_ptr<Checkpoint> checkpoint_ = OpenSynthetic(dir_, testing::TinyGlm4MoeConfig());
};

TEST_F(ModelGraphTest, ChunksOfAPromptGiveTheSameBits) {
  Runner runner(*checkpoint_, {});
  Sequence sequence(RandomTokens(70, 7), 1);
  const std::vector<float> whole = ChunkedLogits(runner.graph(), sequence, 70);
  for (int chunk : {1, 7, 16, 33}) {
    sequence.Rewind();
    EXPECT_EQ(ChunkedLogits(runner.graph(), sequence, chunk), whole) << "chunk of " << chunk;
  }
}

// All logits of a prompt by the model in a GGUF file.
std::vector<float> GgufLogits(const testing::GgufWriter& writer) {
  const testing::TempDir dir;
  writer.Write(dir.File("m.gguf"));
  const auto checkpoint = Checkpoint::Open(dir.File("m.gguf"));
  EXPECT_THAT(checkpoint, testing::IsOk());
  Runner runner(**checkpoint, {});
  Sequence sequence(RandomTokens(30, 11), 1);
  return ChunkedLogits(runner.graph(), sequence, 30);
}

TEST_F(ModelGraphTest, TheSameModelAsGgufGivesTheSameBits) {
  Runner runner(*checkpoint_, {});
  Sequence sequence(RandomTokens(30, 11), 1);
  const std::vector<float> folder = ChunkedLogits(runner.graph(), sequence, 30);
  const auto bf16 = [](absl::string_view) { return std::string("BF16"); };
  EXPECT_EQ(GgufLogits(testing::GgufOf(*checkpoint_, bf16)), folder);
}

// Also where matrices that are multiplied together have different types.
TEST_F(ModelGraphTest, BlocksGiveTheBitsOfTheNumbersThatTheyStandFor) {
  const auto mixed = [](absl::string_view name) -> std::string {
    if (absl::StrContains(name, "_exps")) return "BF16";
    if (absl::StrContains(name, "attn_k.")) return "F16";
    if (absl::StrContains(name, "attn_q.")) return "Q8_0";
    return absl::StrContains(name, "token_embd") ? "Q6_K" : "Q5_0";
  };
  const testing::GgufWriter blocks = testing::GgufOf(*checkpoint_, mixed);
  const testing::TempDir dir;
  blocks.Write(dir.File("m.gguf"));
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto read, Checkpoint::Open(dir.File("m.gguf")));
  const auto wide = [](absl::string_view name) -> std::string {
    return absl::StrContains(name, "_exps") ? "BF16" : "F32";
  };
  EXPECT_EQ(GgufLogits(blocks), GgufLogits(testing::GgufOf(*read, wide)));
}

TEST_F(ModelGraphTest, ThreadsAndDeferredWorkGiveTheSameBits) {
  const std::vector<int32_t> tokens = RandomTokens(50, 8);
  std::vector<float> first;
  for (int threads : {1, 2, 3}) {
    for (auto mode : {CpuDeviceOptions::Mode::kImmediate, CpuDeviceOptions::Mode::kDeferred}) {
      Runner runner(*checkpoint_, {.threads = threads, .mode = mode});
      Sequence sequence(tokens, 0);
      const std::vector<float> logits = ChunkedLogits(runner.graph(), sequence, 20);
      if (first.empty()) first = logits;
      EXPECT_EQ(logits, first) << threads << " threads";
    }
  }
}

TEST_F(ModelGraphTest, ThreadsAndDeferredWorkGiveTheSameBitsOfExpertsOnTheDevice) {
  const std::vector<int32_t> tokens = RandomTokens(50, 8);
  RunnerOptions options;
  const std::string all = absl::StrCat("0-", checkpoint_->config().moe.num_experts - 1);
  ATELIER_ASSERT_OK_AND_ASSIGN(
      options.graph.device_experts,
      ExpertSet::Parse(absl::StrCat("1: ", all, "\n2: ", all, "\n3: 1,3-5"),
                       checkpoint_->config()));
  std::vector<float> first;
  for (options.threads = 1; options.threads <= 3; ++options.threads) {
    for (auto mode : {CpuDeviceOptions::Mode::kImmediate, CpuDeviceOptions::Mode::kDeferred}) {
      options.mode = mode;
      Runner runner(*checkpoint_, options);
      // Nobody is asked for what the device has all of.
      runner.experts().FailLayer(1, absl::UnavailableError("asked"));
      runner.experts().FailLayer(2, absl::UnavailableError("asked"));
      Sequence sequence(tokens, 0);
      const std::vector<float> logits = ChunkedLogits(runner.graph(), sequence, 20);
      if (first.empty()) first = logits;
      EXPECT_EQ(logits, first) << options.threads << " threads";
    }
  }
}

TEST_F(ModelGraphTest, TheRestOfTheBatchChangesNoBit) {
  Runner runner(*checkpoint_, {});
  const int vocab = runner.graph().vocab_size();
  Sequence alone(RandomTokens(33, 9), 0), other(RandomTokens(40, 10), 10),
      third(RandomTokens(5, 11), 20);
  const std::vector<float> expected = ChunkedLogits(runner.graph(), alone, 33);
  alone.Rewind();
  StepLogits(runner.graph(), {other.Next(17, false), alone.Next(32, false)});
  const std::vector<float> mixed =
      StepLogits(runner.graph(), {third.Next(5), other.Next(1), alone.Next(1)});
  const auto row = mixed.begin() + 6 * vocab;
  EXPECT_TRUE(std::equal(row, row + vocab, expected.begin() + 32 * vocab));
}

TEST_F(ModelGraphTest, Int8ExpertsStayWithinTheirBound) {
  Runner runner(*checkpoint_, {.method = Method::kINT8});
  const std::vector<int32_t> tokens = RandomTokens(24, 12);
  Sequence sequence(tokens, 0);
  const std::vector<float> logits = ChunkedLogits(runner.graph(), sequence, 24);
  // An int8 code of a row with amax a is off by at most a / 254; for Gaussian rows of 256 values a
  // is about 3 deviations, so each of the four quantised operands (weights and activations, twice)
  // adds about 3 / 254 / sqrt(3) of its row's deviation.
  const double bound = WholeModelBound(checkpoint_->config()) +
                       2.0 * std::sqrt(4.0 * 3) * 3.0 / 254 / std::sqrt(3.0);
  EXPECT_LT(RelativeError(logits, WithChoicesOf(runner, *checkpoint_, tokens).logits), bound);
}

TEST_F(ModelGraphTest, LostExpertsFailTheStepAndNothingElse) {
  Runner runner(*checkpoint_, {.mode = CpuDeviceOptions::Mode::kDeferred});
  Sequence sequence(RandomTokens(20, 13), 0);
  const std::vector<float> expected = ChunkedLogits(runner.graph(), sequence, 20);
  sequence.Rewind();
  StepLogits(runner.graph(), {sequence.Next(12, false)});
  runner.experts().FailLayer(2, absl::UnavailableError("worker gone"));
  std::vector<float> logits(8 * static_cast<size_t>(runner.graph().vocab_size()));
  EXPECT_THAT(runner.graph().Step({sequence.Next(8)}, absl::MakeSpan(logits)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("worker gone")));
  runner.experts().FailLayer(2, absl::OkStatus());
  sequence.Rewind(12);
  logits = StepLogits(runner.graph(), {sequence.Next(8)});
  EXPECT_TRUE(std::equal(logits.begin(), logits.end(),
                         expected.end() - static_cast<std::ptrdiff_t>(logits.size())));
}

TEST_F(ModelGraphTest, GivesUpBetweenLayersWhenInterruptedAndWorksAfterwards) {
  Runner runner(*checkpoint_, {.mode = CpuDeviceOptions::Mode::kDeferred});
  Sequence sequence(RandomTokens(20, 14), 0);
  const std::vector<float> expected = ChunkedLogits(runner.graph(), sequence, 20);
  sequence.Rewind();
  int asked = 0;
  runner.graph().SetInterrupt([&] { return ++asked == 3; });
  std::vector<float> logits(expected.size());
  EXPECT_THAT(runner.graph().Step({sequence.Next(20)}, absl::MakeSpan(logits)),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("nobody")));
  EXPECT_EQ(asked, 3);
  runner.graph().SetInterrupt(nullptr);
  sequence.Rewind();
  EXPECT_EQ(ChunkedLogits(runner.graph(), sequence, 20), expected);
}

TEST_F(ModelGraphTest, ContextIsWhatModelAndCacheAllow) {
  GraphOptions options;
  options.kv_cache_bytes = 100 * 16 * 4 * 2 * 2 * 64 * 2;  // 100 blocks of this model
  Runner runner(*checkpoint_, {.graph = options});
  EXPECT_EQ(runner.graph().num_blocks(), 100);
  EXPECT_EQ(runner.graph().max_context(),
            std::min(1600, checkpoint_->config().max_position_embeddings));
}

struct BadOption {
  GraphOptions options;
  absl::StatusCode code;
  std::string message;
};

TEST_F(ModelGraphTest, RefusesOptionsThatCannotWork) {
  const BadOption cases[] = {
      {{.kv_cache_bytes = 1000}, absl::StatusCode::kResourceExhausted, "--kv-cache-bytes=1000"},
      {{.block_size = 0}, absl::StatusCode::kInvalidArgument, "--page-size=0"},
      {{.block_size = 257}, absl::StatusCode::kInvalidArgument, "--page-size=257"},
      {{.max_context = 1 << 29}, absl::StatusCode::kInvalidArgument, "exceeds the model's"},
      {{.kv_cache_bytes = 1 << 20, .max_context = 1024},
       absl::StatusCode::kInvalidArgument,
       "of KV cache"},
      {{.max_tokens_per_step = 0}, absl::StatusCode::kInvalidArgument, "max_tokens_per_step=0"},
      {{.max_sequences = 0}, absl::StatusCode::kInvalidArgument, "max_sequences=0"}};
  const auto device = CreateCpuDevice({}).value();
  const auto experts = LocalExperts::Create(*checkpoint_, {}).value();
  prometheus::Registry registry;
  FrontendMetrics metrics(registry);
  SystemClock clock;
  Logger logger(Severity::kError);
  for (const BadOption& bad : cases) {
    EXPECT_THAT(
        ModelGraph::Create(*checkpoint_, *device, *experts, bad.options, clock, logger, metrics),
        StatusIs(bad.code, HasSubstr(bad.message)));
  }
}

}  // namespace
}  // namespace atelier
