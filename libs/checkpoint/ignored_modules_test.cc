#include "libs/checkpoint/ignored_modules.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/testing/published_forms.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/synthetic_checkpoint.h"
#include "libs/testing/temp_dir.h"

namespace atelier {
namespace {

using ::atelier::testing::IsOk;
using ::atelier::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

IgnoredModules List(const char* key, std::vector<std::string> entries) {
  QuantizationConfig config;
  config.ignored_key = key;
  config.ignored = std::move(entries);
  return IgnoredModules::Create(config).value();
}

struct Case {
  const char* key;
  const char* entry;
  const char* module;
  bool ignored;
};

TEST(IgnoredModules, AreThoseThatTheFormatsOwnLoadersSkip) {
  const std::string q = "model.layers.3.self_attn.q_proj", gate = "model.layers.0.mlp.gate";
  const Case cases[] = {
      {"ignore", "lm_head", "lm_head", true},
      {"ignore", "model.layers.3.self_attn.q_proj", q.c_str(), true},
      {"ignore", "model.layers.3.self_attn", q.c_str(), false},
      {"ignore", "q_proj", q.c_str(), false},
      {"ignore", "re:.*self_attn.*", q.c_str(), true},
      {"ignore", "re:self_attn.*", q.c_str(), false},  // from the name's start
      {"ignore", "re:.*mlp\\.gate$", gate.c_str(), true},
      {"ignore", "re:.*mlp\\.gate$", "model.layers.0.mlp.gate_proj", false},
      {"ignore", "re:.*mlp\\.(gate|up)_proj", "model.layers.0.mlp.up_proj", true},
      {"ignore", "re:^(?!.*experts).*", q.c_str(), false},  // RE2 knows no look-ahead
      {"modules_to_not_convert", "lm_head", "lm_head", true},
      {"modules_to_not_convert", "model.layers.3", q.c_str(), true},
      {"modules_to_not_convert", "model.layers.3", "model.layers.33.self_attn.q_proj", false},
      {"modules_to_not_convert", "mlp.gate", gate.c_str(), true},
      {"modules_to_not_convert", "mlp.gate", "model.layers.0.mlp.gate_proj", false},
      {"modules_to_not_convert", "gate", "model.layers.0.mlp.experts.0.gate_proj", false},
      {"modules_to_not_convert", "model.layers.*.self_attn", q.c_str(), true},
      {"modules_to_not_convert", "model.layers.*.self_attn", gate.c_str(), false},
      {"modules_to_not_convert", "re:.*self_attn.*", q.c_str(), false},
  };
  for (const Case& each : cases) {
    const absl::Status status = List(each.key, {"other", each.entry})
                                    .Check(std::string(each.module) + ".qweight", DType::kI32, "f");
    EXPECT_EQ(status.ok(), !each.ignored) << each.key << " " << each.entry << " " << each.module;
  }
}

TEST(IgnoredModules, MayNotBeQuantised) {
  const IgnoredModules modules = List("modules_to_not_convert", {"lm_head"});
  EXPECT_THAT(modules.Check("lm_head.weight", DType::kF8E4M3, "a.safetensors"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("a.safetensors"), HasSubstr("lm_head.weight"),
                             HasSubstr("modules_to_not_convert"))));
  EXPECT_THAT(modules.Check("lm_head.weight_packed", DType::kI32, "f"), Not(IsOk()));
  EXPECT_THAT(modules.Check("lm_head.weight", DType::kBF16, "f"), IsOk());
  EXPECT_THAT(modules.Check("lm_head.bias", DType::kF8E4M3, "f"), IsOk());
}

TEST(IgnoredModules, TooManyExpressionsAreRefused) {
  QuantizationConfig config;
  config.ignored_key = "ignore";
  config.ignored.assign(65, "re:a");
  EXPECT_THAT(IgnoredModules::Create(config),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ignore")));
  config.ignored = {"re:" + std::string(2000, 'a')};
  EXPECT_THAT(IgnoredModules::Create(config), Not(IsOk()));
  config.ignored = {"re:((a{0,1000}){0,1000}){0,1000}"};  // more memory than one may have
  ATELIER_EXPECT_OK(IgnoredModules::Create(config));
}

TEST(IgnoredModules, AreReadFromTheConfigOfACheckpoint) {
  const testing::TempDir dir;
  const auto open = [&](const char* ignored) {
    testing::WriteSyntheticCheckpoint(
        dir.path(), {.config_json = testing::TinyQwen3MoeConfig(
                         absl::StrCat(R"({"quantization_config": {"quant_method": "awq", "bits": 4,
                             "group_size": 64, "modules_to_not_convert": )",
                                      ignored, "}}"))});
    testing::Tensors tensors;
    testing::AddAwq("model.layers.1.self_attn.q_proj", testing::Make(8, 64, 64, 1), tensors);
    testing::WriteSafetensors(dir.File("model.safetensors"), tensors);
    return Checkpoint::Open(dir.path()).status();
  };
  ATELIER_EXPECT_OK(open("null"));
  ATELIER_EXPECT_OK(open(R"(["lm_head"])"));
  EXPECT_THAT(open(R"(["self_attn.q_proj"])"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("layers.1.self_attn.q_proj")));
}

}  // namespace
}  // namespace atelier
