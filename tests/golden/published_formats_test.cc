#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/testing/run_program.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/temp_dir.h"
#include "tests/golden/demo_model_path.h"
#include "tests/golden/golden_file.h"
#include "tests/golden/model_under_test.h"
#include "tests/golden/perplexity.h"

// The demo model as people publish models, written in Python from the formats' descriptions: only a
// reader and kernels that take every code, scale and zero point as they were meant keep the
// perplexity of the text.

namespace atelier::golden {
namespace {

constexpr char kPython[] = ".venv/demo-model/bin/python";

struct Published {
  const char* name;
  bool gguf;          // one file with every matrix in the format, else a folder with the experts
  Method method;      // that the first matrices of its experts must be found in
  double perplexity;  // as docs/numerics.md states it
  bool pad = false;   // with zeros, until every row is a multiple of 256
  const char* dense =
      "plain";  // of a folder: what tools/demo_model_quantised.py does with the rest
};

void PrintTo(const Published& format, std::ostream* out) { *out << format.name; }

class DemoModelPublished : public ::testing::TestWithParam<Published> {};

// Where the model lies after writing it; "" after a failure.
std::string Write(const Published& format, const testing::TempDir& dir) {
  const std::string output = dir.File(format.gguf ? "model.gguf" : "model");
  std::vector<std::string> command = {
      kPython,
      format.gguf ? "tools/demo_model_gguf.py" : "tools/demo_model_quantised.py",
      "--model",
      DemoModelDirectory(),
      format.gguf ? "--type" : "--format",
      format.name,
      "--output",
      output};
  if (format.pad) command.push_back("--pad");
  if (!format.gguf) command.insert(command.end(), {"--dense", format.dense});
  const testing::Outcome done = testing::RunProgram(command);
  EXPECT_EQ(done.status, 0) << done.output << "\nscripts/test makes " << kPython;
  return done.status == 0 ? output : "";
}

absl::StatusOr<std::unique_ptr<ModelUnderTest>> ModelOf(const Published& format,
                                                        const Checkpoint& checkpoint) {
  RunOptions options;
  options.method = format.method;
  options.num_threads = 0;
  options.max_tokens_per_step = 128;
  return ModelUnderTest::Create(checkpoint, options);
}

// Formats whose kernel and reader another one of the list exercises too: half a minute each, for
// which only the long form has the time.
class DemoModelPublishedLong : public DemoModelPublished {
 protected:
  void SetUp() override {
    if (std::getenv("ATELIER_LONG_TESTS") == nullptr) GTEST_SKIP() << "scripts/test --long runs it";
  }
};

void ExpectStatedPerplexity(const Published& format) {
  const testing::TempDir dir;
  const std::string path = Write(format, dir);
  ASSERT_FALSE(path.empty());
  ATELIER_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Checkpoint> checkpoint,
                               Checkpoint::Open(path));
  ATELIER_ASSERT_OK_AND_ASSIGN(const ExpertTensors expert, FindExpert(*checkpoint, 1, 0));
  ASSERT_TRUE(expert.gate.quant.has_value());
  ASSERT_EQ(MethodName(expert.gate.quant->method), MethodName(format.method));
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto model, ModelOf(format, *checkpoint));
  const DemoGolden golden = LoadDemoGolden();
  const double perplexity = Perplexity(*model, golden.windows);
  std::printf("  %s: perplexity %.4f, dense fp32 %.4f\n", format.name, perplexity,
              golden.perplexity);
  EXPECT_NEAR(perplexity, format.perplexity, kStatedPerplexityTolerance * format.perplexity);
}

TEST_P(DemoModelPublished, PerplexityIsTheStatedOne) { ExpectStatedPerplexity(GetParam()); }
TEST_P(DemoModelPublishedLong, PerplexityIsTheStatedOne) { ExpectStatedPerplexity(GetParam()); }

// Everything quantised, against the file in which NumPy has widened what the frontend has to widen.
class DemoModelWhollyQuantised : public ::testing::TestWithParam<Published> {};

TEST_P(DemoModelWhollyQuantised, LogitsAreThoseOfTheWidenedCheckpoint) {
  const DemoGolden golden = LoadDemoGolden();
  std::vector<std::vector<float>> logits;
  for (const char* dense : {"quantised", "widened"}) {
    const testing::TempDir dir;
    Published format = GetParam();
    format.dense = dense;
    const std::string path = Write(format, dir);
    ASSERT_FALSE(path.empty());
    ATELIER_ASSERT_OK_AND_ASSIGN(const auto checkpoint, Checkpoint::Open(path));
    ATELIER_ASSERT_OK_AND_ASSIGN(const auto model, ModelOf(format, *checkpoint));
    std::vector<float>& all = logits.emplace_back();
    ATELIER_ASSERT_OK(model->TeacherForce(
        absl::MakeConstSpan(golden.windows[0].tokens).first(64), 0,
        [&all](int, absl::Span<const float> l) { all.insert(all.end(), l.begin(), l.end()); }));
  }
  ASSERT_EQ(logits[0].size(), logits[1].size());
  EXPECT_EQ(std::memcmp(logits[0].data(), logits[1].data(), logits[0].size() * sizeof(float)), 0);
}

INSTANTIATE_TEST_SUITE_P(Golden, DemoModelWhollyQuantised,
                         ::testing::Values(Published{"fp8_block", false, Method::kFP8_BLOCK, 0},
                                           Published{"int4", false, Method::kINT4G64, 0},
                                           Published{"awq", false, Method::kINT4G64Z, 0}),
                         [](const auto& info) { return std::string(info.param.name); });

Published Whole(const char* name, Method method, double perplexity) {
  return {name, false, method, perplexity, false, "quantised"};
}

std::string NameOf(const ::testing::TestParamInfo<Published>& info) {
  return absl::StrCat(info.param.name, info.param.pad ? "_padded" : "",
                      info.param.dense == std::string("quantised") ? "_whole" : "");
}

INSTANTIATE_TEST_SUITE_P(Golden, DemoModelPublished,
                         ::testing::Values(Published{"fp8_block", false, Method::kFP8_BLOCK, 20.99},
                                           Published{"mxfp4", false, Method::kMXFP4, 24.10},
                                           Published{"int4", false, Method::kINT4G64, 23.49},
                                           Published{"awq", false, Method::kINT4G64Z, 23.26},
                                           Whole("fp8_channel", Method::kFP8_ROW, 20.94),
                                           Published{"Q8_0", true, Method::kQ8_0, 20.91},
                                           Published{"Q4_0", true, Method::kQ4_0, 26.96},
                                           Published{"Q4_K_M", true, Method::kQ4_K, 21.41, true},
                                           Published{"Q6_K", true, Method::kQ6_K, 21.45, true},
                                           Published{"IQ4_XS", true, Method::kIQ4_XS, 23.77, true}),
                         NameOf);

INSTANTIATE_TEST_SUITE_P(Golden, DemoModelPublishedLong,
                         ::testing::Values(Published{"fp8_channel", false, Method::kFP8_ROW, 21.15},
                                           Published{"mxfp8", false, Method::kMXFP8, 20.92},
                                           Published{"gptq", false, Method::kINT4G64Z, 23.26},
                                           Whole("fp8_block", Method::kFP8_BLOCK, 21.60),
                                           Whole("mxfp8", Method::kMXFP8, 21.21),
                                           Whole("mxfp4", Method::kMXFP4, 31.02),
                                           Whole("int4", Method::kINT4G64, 28.91),
                                           Whole("gptq", Method::kINT4G64Z, 26.50),
                                           Whole("awq", Method::kINT4G64Z, 26.50),
                                           Published{"Q5_1", true, Method::kQ5_1, 24.95},
                                           Published{"Q5_0", true, Method::kQ5_0, 22.14},
                                           Published{"Q4_1", true, Method::kQ4_1, 21.98},
                                           Published{"Q4_K_M", true, Method::kQ5_0, 21.46},
                                           Published{"Q5_K_M", true, Method::kQ5_1, 23.71},
                                           Published{"Q6_K", true, Method::kQ8_0, 20.86},
                                           Published{"IQ4_XS", true, Method::kIQ4_NL, 23.49},
                                           Published{"Q5_K_M", true, Method::kQ5_K, 21.65, true}),
                         NameOf);

}  // namespace
}  // namespace atelier::golden
