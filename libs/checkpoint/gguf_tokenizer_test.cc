#include "libs/checkpoint/gguf_tokenizer.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/checkpoint/gguf_set.h"
#include "libs/model/gguf_config.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/synthetic_gguf.h"
#include "libs/testing/temp_dir.h"
#include "nlohmann/json.hpp"

namespace atelier {
namespace {

using ::atelier::testing::GgufWriter;
using ::atelier::testing::StatusIs;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::vector<std::string> kTokens = {"<s>", "a", "b", "ab", "<tool>", "\xc4\xa0"};
const std::vector<int32_t> kTypes = {3, 1, 1, 1, 4, 1};

class GgufTokenizer : public ::testing::Test {
 protected:
  // A file with the usual tokenizer; `change` is called before anything is added.
  GgufWriter Usual(const std::string& pre = "qwen2", const std::vector<std::string>& merges = {}) {
    GgufWriter writer;
    writer.Add("general.architecture", "qwen3moe");
    writer.Add("tokenizer.ggml.model", "gpt2");
    writer.Add("tokenizer.ggml.pre", absl::string_view(pre));
    writer.Add("tokenizer.ggml.merges", merges);
    return writer;
  }
  absl::StatusOr<TokenizerFiles> Read(const GgufWriter& writer) {
    writer.Write(dir_.File("m.gguf"));
    return ReadGgufTokenizer(dir_.File("m.gguf"));
  }
  testing::TempDir dir_;
};

TEST_F(GgufTokenizer, BecomesHuggingFacesFiles) {
  GgufWriter writer = Usual("qwen2", {"a b"});
  writer.Add("tokenizer.ggml.tokens", kTokens);
  writer.Add("tokenizer.ggml.token_type", kTypes);
  writer.Add("tokenizer.ggml.eos_token_id", 0);
  writer.Add("tokenizer.chat_template", "{{ messages }}");
  ATELIER_ASSERT_OK_AND_ASSIGN(const TokenizerFiles files, Read(writer));
  const json tokenizer = json::parse(files.at("tokenizer.json"));
  EXPECT_EQ(tokenizer["model"]["vocab"]["ab"], 3);
  EXPECT_EQ(tokenizer["model"]["vocab"].size(), 6u);
  EXPECT_EQ(tokenizer["model"]["merges"], json({"a b"}));
  EXPECT_EQ(tokenizer["normalizer"]["type"], "NFC");
  EXPECT_EQ(tokenizer["post_processor"], nullptr);
  ASSERT_EQ(tokenizer["added_tokens"].size(), 2u);
  EXPECT_EQ(tokenizer["added_tokens"][0]["content"], "<s>");
  EXPECT_EQ(tokenizer["added_tokens"][0]["special"], true);
  EXPECT_EQ(tokenizer["added_tokens"][1]["id"], 4);
  EXPECT_EQ(tokenizer["added_tokens"][1]["special"], false);
  const json& steps = tokenizer["pre_tokenizer"]["pretokenizers"];
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_THAT(steps[0]["pattern"]["Regex"].get<std::string>(), HasSubstr("|\\p{N}| ?"));
  EXPECT_EQ(steps[1]["use_regex"], false);
  const json config = json::parse(files.at("tokenizer_config.json"));
  EXPECT_EQ(config["eos_token"], "<s>");
  EXPECT_FALSE(config.contains("bos_token"));
  EXPECT_EQ(config["chat_template"], "{{ messages }}");
  EXPECT_EQ(config["added_tokens_decoder"]["4"]["content"], "<tool>");
}

TEST_F(GgufTokenizer, NamesEveryStopTokenOnce) {
  GgufWriter writer = Usual();
  writer.Add("tokenizer.ggml.tokens", kTokens);
  writer.Add("tokenizer.ggml.eos_token_id", 3);
  writer.Add("tokenizer.ggml.eot_token_id", 4);
  writer.Add("tokenizer.ggml.eom_token_id", 4);
  ATELIER_ASSERT_OK_AND_ASSIGN(const TokenizerFiles files, Read(writer));
  const json config = json::parse(files.at("generation_config.json"));
  EXPECT_EQ(config["eos_token_id"], json({3, 4}));
}

// Converters of Qwen and Llama write one of both, and a text that only stops at that runs on.
TEST_F(GgufTokenizer, EndsAtControlTokensWithTheNamesOfEndsToo) {
  for (const char* end_of_turn : {"<|im_end|>", "<|eot_id|>"}) {
    GgufWriter writer = Usual();
    writer.Add("tokenizer.ggml.tokens",
               std::vector<std::string>{"a", "<|endoftext|>", end_of_turn, "<|eom_id|>"});
    writer.Add("tokenizer.ggml.token_type", std::vector<int32_t>{1, 3, 3, 1});
    writer.Add("tokenizer.ggml.eos_token_id", 1);
    ATELIER_ASSERT_OK_AND_ASSIGN(const TokenizerFiles files, Read(writer));
    EXPECT_EQ(json::parse(files.at("generation_config.json"))["eos_token_id"], json({1, 2}));
    ATELIER_ASSERT_OK_AND_ASSIGN(const GgufSet set, OpenGgufSet(dir_.File("m.gguf")));
    GgufFields fields(set.metadata());
    EXPECT_EQ(GgufStopIds(fields), (std::vector<int64_t>{1, 2}));
  }
}

TEST_F(GgufTokenizer, RefusesMergesThatNoProgramCouldLoad) {
  for (const std::string merge : {"a c", "ab", "a  b", "b a", "a b a"}) {
    GgufWriter writer = Usual("qwen2", {"a b", merge});
    writer.Add("tokenizer.ggml.tokens", kTokens);
    EXPECT_THAT(Read(writer),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("tokenizer.ggml.merges"), HasSubstr(merge))));
  }
  GgufWriter none;
  none.Add("tokenizer.ggml.model", "gpt2");
  none.Add("tokenizer.ggml.pre", "qwen2");
  none.Add("tokenizer.ggml.tokens", kTokens);
  EXPECT_THAT(Read(none), StatusIs(absl::StatusCode::kInvalidArgument,
                                   HasSubstr("lack tokenizer.ggml.merges")));
  GgufWriter ends = Usual();
  ends.Add("tokenizer.ggml.tokens", kTokens);
  ends.Add("tokenizer.ggml.add_eos_token", true);
  EXPECT_THAT(Read(ends), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("add_eos_token")));
}

TEST_F(GgufTokenizer, SplitsAsItsPreTokenizerSays) {
  for (const auto& [pre, digits] : std::map<std::string, std::string>{
           {"glm4", "\\p{N}{1,3}"}, {"chatglm-bpe", "\\p{N}{1,3}"}, {"smollm", ""}}) {
    GgufWriter writer = Usual(pre);
    writer.Add("tokenizer.ggml.tokens", kTokens);
    ATELIER_ASSERT_OK_AND_ASSIGN(const TokenizerFiles files, Read(writer));
    const json tokenizer = json::parse(files.at("tokenizer.json"));
    const json& steps = tokenizer["pre_tokenizer"]["pretokenizers"];
    EXPECT_EQ(tokenizer["normalizer"], nullptr) << pre;
    if (pre == "smollm") {
      EXPECT_EQ(steps[0]["type"], "Digits");
      EXPECT_EQ(steps[1]["use_regex"], true);
    } else {
      EXPECT_THAT(steps[0]["pattern"]["Regex"].get<std::string>(), HasSubstr(digits)) << pre;
    }
  }
}

TEST_F(GgufTokenizer, BeginsTextsWithATokenWhereTheFileSaysSo) {
  GgufWriter writer = Usual();
  writer.Add("tokenizer.ggml.tokens", kTokens);
  writer.Add("tokenizer.ggml.bos_token_id", 4);
  writer.Add("tokenizer.ggml.add_bos_token", true);
  ATELIER_ASSERT_OK_AND_ASSIGN(const TokenizerFiles files, Read(writer));
  const json post = json::parse(files.at("tokenizer.json"))["post_processor"];
  EXPECT_EQ(post["single"][0]["SpecialToken"]["id"], "<tool>");
  EXPECT_EQ(post["special_tokens"]["<tool>"]["ids"], json({4}));
}

TEST_F(GgufTokenizer, RefusesWhatItCannotTurnIntoFiles) {
  EXPECT_THAT(Read(Usual()), StatusIs(absl::StatusCode::kNotFound, HasSubstr("m.gguf")));
  GgufWriter unknown = Usual("tekken");
  unknown.Add("tokenizer.ggml.tokens", kTokens);
  EXPECT_THAT(Read(unknown), StatusIs(absl::StatusCode::kUnimplemented,
                                      AllOf(HasSubstr("tokenizer.ggml.pre"), HasSubstr("tekken"),
                                            HasSubstr("qwen2, glm4"))));
  GgufWriter pieces;
  pieces.Add("tokenizer.ggml.model", "llama");
  pieces.Add("tokenizer.ggml.tokens", kTokens);
  EXPECT_THAT(Read(pieces), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("llama")));
  const auto bad = [this](const std::vector<std::string>& tokens, const std::vector<int32_t>& types,
                          int eos) {
    GgufWriter writer = Usual();
    writer.Add("tokenizer.ggml.tokens", tokens);
    writer.Add("tokenizer.ggml.token_type", types);
    writer.Add("tokenizer.ggml.eos_token_id", eos);
    return Read(writer);
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(bad({"a", "b"}, {1}, 0), StatusIs(kInvalid, HasSubstr("token_type")));
  EXPECT_THAT(bad({"a", "a"}, {1, 1}, 0), StatusIs(kInvalid, HasSubstr("\"a\" twice")));
  EXPECT_THAT(bad({"a", "b"}, {1, 1}, 2), StatusIs(kInvalid, HasSubstr("eos_token_id=2")));
  EXPECT_THAT(bad({"a", "\xff"}, {1, 1}, 0), StatusIs(kInvalid, HasSubstr("no UTF-8")));
}

}  // namespace
}  // namespace atelier
