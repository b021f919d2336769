#include "libs/checkpoint/checkpoint.h"

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/synthetic_checkpoint.h"
#include "libs/testing/temp_dir.h"

namespace atelier {
namespace {

using ::atelier::testing::RawTensor;
using ::atelier::testing::StatusIs;
using ::atelier::testing::SyntheticSpec;
using ::atelier::testing::TempDir;
using ::atelier::testing::TinyGlm4MoeConfig;
using ::atelier::testing::TinyQwen3MoeConfig;
using ::atelier::testing::WriteSafetensors;
using ::atelier::testing::WriteSyntheticCheckpoint;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Small enough to write in a few milliseconds.
constexpr char kSmall[] = R"({"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 48, "intermediate_size": 40,
    "moe_intermediate_size": 24})";

TEST(Checkpoint, OpensWhatItsConfigPromises) {
  for (const std::string& config : {TinyQwen3MoeConfig(kSmall), TinyGlm4MoeConfig(kSmall),
                                    TinyQwen3MoeConfig(R"({"tie_word_embeddings": true,
                                        "attention_bias": true, "mlp_only_layers": [1]})")}) {
    for (int num_files : {1, 3}) {
      TempDir dir;
      WriteSyntheticCheckpoint(dir.path(), {.config_json = config, .num_files = num_files});
      ATELIER_ASSERT_OK_AND_ASSIGN(const auto checkpoint, Checkpoint::Open(dir.path()));
      ATELIER_EXPECT_OK(VerifyTensors(*checkpoint, Role::kAll));
      EXPECT_EQ(checkpoint->directory(), dir.path());
      EXPECT_EQ(checkpoint->digest().size(), 64u);
    }
  }
}

TEST(Checkpoint, FindsATensorWithItsBytes) {
  TempDir dir;
  WriteSyntheticCheckpoint(dir.path(), {.config_json = TinyQwen3MoeConfig(kSmall)});
  std::filesystem::remove(dir.File("model.safetensors"));
  WriteSafetensors(dir.File("model.safetensors"),
                   {{"a", {DType::kBF16, {3}, "ABCDEF"}}, {"b", {DType::kU8, {2, 1}, "xy"}}});
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto checkpoint, Checkpoint::Open(dir.path()));
  EXPECT_THAT(checkpoint->TensorNames(), ElementsAre("a", "b"));
  ATELIER_ASSERT_OK_AND_ASSIGN(const TensorView b, checkpoint->Find("b"));
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.dtype, DType::kU8);
  EXPECT_THAT(b.shape, ElementsAre(2, 1));
  EXPECT_THAT(b.data, ElementsAre('x', 'y'));
  EXPECT_EQ(b.file, "model.safetensors");
}

}  // namespace
}  // namespace atelier
