#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "libs/base/float16.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/checkpoint/tensor_list.h"
#include "libs/testing/published_forms.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/synthetic_checkpoint.h"
#include "libs/testing/temp_dir.h"
#include "tests/golden/model_under_test.h"

// Checkpoints that quantise the frontend's own layers, in every published form: the logits are, bit
// for bit, those of the checkpoint in which the test has put bf16 numbers in the codes' place.

namespace atelier::golden {
namespace {

using testing::Dim;
using testing::Made;
using testing::Tensors;

// A matrix in its published form, and what it stands for.
struct Matrix {
  Tensors tensors;  // "<name>.…"
  std::vector<float> values;
};

using Write = Matrix (*)(const std::string& name, size_t rows, size_t columns, uint32_t seed);

constexpr size_t kGroup = 64;

// Codes of all kinds with scales that keep the layers' numbers moderate.
Made MakeModerate(size_t rows, size_t columns, size_t group, bool bf16, uint32_t seed) {
  Made made = testing::Make(rows, columns, group, seed);
  for (uint16_t& scale : made.scales) {
    const float value = 0.004f + static_cast<float>(scale) * 1e-7f;
    scale = bf16 ? ToBFloat16(value).bits : ToFloat16(value);
  }
  for (uint8_t& exponent : made.exponents) exponent = static_cast<uint8_t>(117 + exponent % 4);
  return made;
}

std::vector<float> ValuesOfInt4(const Made& made, bool bf16, bool zeros) {
  std::vector<float> values;
  for (size_t i = 0; i < made.rows * made.columns; ++i) {
    const size_t group = i / made.columns * made.groups() + i % made.columns / made.group;
    const uint16_t bits = made.scales[group];
    const float scale = bf16 ? ToFloat(BFloat16{bits}) : Float16ToFloat(bits);
    values.push_back(scale * static_cast<float>(made.codes[i] - (zeros ? made.zeros[group] : 8)));
  }
  return values;
}

template <bool symmetric>
Matrix Compressed(const std::string& name, size_t rows, size_t columns, uint32_t seed) {
  const Made made = MakeModerate(rows, columns, kGroup, true, seed);
  Matrix matrix{{}, ValuesOfInt4(made, true, !symmetric)};
  testing::AddCompressed(name, made, symmetric, matrix.tensors);
  return matrix;
}

Matrix PerRow(const std::string& name, size_t rows, size_t columns, uint32_t seed) {
  const Made made = MakeModerate(rows, columns, columns, true, seed);
  Matrix matrix{{}, ValuesOfInt4(made, true, false)};
  testing::AddCompressed(name, made, true, matrix.tensors);
  return matrix;
}

template <bool symmetric, uint32_t less>
Matrix Gptq(const std::string& name, size_t rows, size_t columns, uint32_t seed) {
  const Made made = MakeModerate(rows, columns, kGroup, false, seed);
  Matrix matrix{{}, ValuesOfInt4(made, false, !symmetric)};
  testing::AddGptq(name, made, symmetric, less, matrix.tensors);
  return matrix;
}

Matrix Awq(const std::string& name, size_t rows, size_t columns, uint32_t seed) {
  const Made made = MakeModerate(rows, columns, kGroup, false, seed);
  Matrix matrix{{}, ValuesOfInt4(made, false, true)};
  testing::AddAwq(name, made, matrix.tensors);
  return matrix;
}

Matrix PackedMxFp4(const std::string& name, size_t rows, size_t columns, uint32_t seed) {
  constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  const Made made = MakeModerate(rows, columns, 32, true, seed);
  Matrix matrix;
  for (size_t i = 0; i < rows * columns; ++i) {
    const float magnitude = std::ldexp(kValues[made.codes[i] & 7], made.exponents[i / 32] - 127);
    matrix.values.push_back((made.codes[i] & 8) != 0 ? 0 - magnitude : magnitude);
  }
  testing::AddPackedMxFp4(name, made, matrix.tensors);
  return matrix;
}

// E4M3 codes other than NaN.
std::vector<uint8_t> Fp8Codes(size_t count, std::mt19937& random) {
  std::vector<uint8_t> codes(count);
  for (uint8_t& code : codes) {
    do code = static_cast<uint8_t>(random());
    while ((code & 0x7f) == 0x7f);
  }
  return codes;
}

float Fp8(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(1 + mantissa / 8.0, exponent - 7);
  return static_cast<float>((code & 0x80) != 0 ? -magnitude : magnitude);
}

// Scales per `tall` x `wide`, in fp32 (or bf16), under `suffix`.
template <typename T>
Matrix Fp8Scaled(const std::string& name, size_t rows, size_t columns, size_t tall, size_t wide,
                 const char* suffix, uint32_t seed) {
  std::mt19937 random(seed);
  const std::vector<uint8_t> codes = Fp8Codes(rows * columns, random);
  const size_t high = (rows + tall - 1) / tall, across = (columns + wide - 1) / wide;
  std::vector<T> scales;
  std::vector<float> scale_values;
  for (size_t i = 0; i < high * across; ++i) {
    float value = 1e-4f * (1.0f + static_cast<float>(random() % 1000) / 777.0f);
    if constexpr (std::is_same_v<T, float>) {
      scales.push_back(value);
    } else {
      scales.push_back(ToBFloat16(value).bits);
      value = ToFloat(ToBFloat16(value));
    }
    scale_values.push_back(value);
  }
  Matrix matrix;
  for (size_t i = 0; i < codes.size(); ++i) {
    const size_t block = i / columns / tall * across + i % columns / wide;
    matrix.values.push_back(Fp8(codes[i]) * scale_values[block]);
  }
  matrix.tensors[name + ".weight"] =
      testing::Tensor(DType::kF8E4M3, {Dim(rows), Dim(columns)}, codes);
  matrix.tensors[name + suffix] = testing::Tensor(
      std::is_same_v<T, float> ? DType::kF32 : DType::kBF16, {Dim(high), Dim(across)}, scales);
  return matrix;
}

Matrix Fp8Blocks(const std::string& name, size_t rows, size_t columns, uint32_t seed) {
  return Fp8Scaled<float>(name, rows, columns, 128, 128, ".weight_scale_inv", seed);
}
Matrix Fp8BlocksBf16(const std::string& name, size_t rows, size_t columns, uint32_t seed) {
  return Fp8Scaled<uint16_t>(name, rows, columns, 128, 128, ".weight_scale_inv", seed);
}
Matrix Fp8Rows(const std::string& name, size_t rows, size_t columns, uint32_t seed) {
  return Fp8Scaled<uint16_t>(name, rows, columns, 1, columns, ".weight_scale", seed);
}

Matrix MxFp8(const std::string& name, size_t rows, size_t columns, uint32_t seed) {
  std::mt19937 random(seed);
  const std::vector<uint8_t> codes = Fp8Codes(rows * columns, random);
  std::vector<uint8_t> exponents(codes.size() / 32);
  for (uint8_t& exponent : exponents) exponent = static_cast<uint8_t>(112 + random() % 4);
  Matrix matrix;
  for (size_t i = 0; i < codes.size(); ++i) {
    matrix.values.push_back(std::ldexp(Fp8(codes[i]), exponents[i / 32] - 127));
  }
  matrix.tensors[name + ".weight"] =
      testing::Tensor(DType::kF8E4M3, {Dim(rows), Dim(columns)}, codes);
  matrix.tensors[name + ".weight_scale_inv"] =
      testing::Tensor(DType::kU8, {Dim(rows), Dim(columns / 32)}, exponents);
  return matrix;
}

struct Form {
  const char* name;
  const char* config;  // quantization_config
  Write write;
};

void PrintTo(const Form& form, std::ostream* out) { *out << form.name; }

#define INT4_GROUPS(symmetric)                                                                     \
  R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"g": {)" \
  R"("weights": {"num_bits": 4, "group_size": 64, "symmetric": )" symmetric "}}}}"

constexpr Form kForms[] = {
    {"Fp8Blocks", R"({"quant_method": "fp8", "weight_block_size": [128, 128]})", Fp8Blocks},
    {"Fp8BlocksBf16", R"({"quant_method": "fp8", "weight_block_size": [128, 128]})", Fp8BlocksBf16},
    {"Fp8Rows",
     R"({"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["nothing"],
         "config_groups": {"g": {"weights": {"num_bits": 8, "strategy": "channel"}}}})",
     Fp8Rows},
    {"MxFp8", R"({"quant_method": "mxfp8"})", MxFp8},
    {"PackedMxFp4", R"({"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"})",
     PackedMxFp4},
    {"Compressed", INT4_GROUPS("true"), Compressed<true>},
    {"CompressedWithZeros", INT4_GROUPS("false"), Compressed<false>},
    {"CompressedPerRow",
     R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"g": {
         "weights": {"num_bits": 4, "strategy": "channel", "symmetric": true}}}})",
     PerRow},
    {"Gptq", R"({"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": false})",
     Gptq<false, 1>},
    {"GptqSymmetric", R"({"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": true})",
     Gptq<true, 1>},
    {"GptqV2",
     R"({"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": false,
         "checkpoint_format": "gptq_v2"})",
     Gptq<false, 0>},
    {"Awq", R"({"quant_method": "awq", "bits": 4, "group_size": 64})", Awq}};

#undef INT4_GROUPS

Tensors TensorsOf(const Checkpoint& checkpoint) {
  Tensors tensors;
  for (const std::string& name : checkpoint.TensorNames()) {
    const TensorView view = checkpoint.Find(name).value();
    tensors[name] = {view.dtype, view.shape, std::string(view.data.begin(), view.data.end())};
  }
  return tensors;
}

// Every matrix of the frontend but the embedding, which nobody quantises.
bool IsQuantised(const PromisedTensor& tensor) {
  return tensor.shape.size() == 2 && !absl::StrContains(tensor.name, "embed_tokens");
}

testing::RawTensor Bf16(const PromisedTensor& tensor, const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (const float value : values) bits.push_back(ToBFloat16(value).bits);
  return testing::Tensor(DType::kBF16, tensor.shape, bits);
}

class QuantisedDense : public ::testing::TestWithParam<Form> {
 protected:
  // The logits of a few tokens.
  static std::vector<float> Logits(const std::string& path) {
    const auto checkpoint = Checkpoint::Open(path);
    EXPECT_THAT(checkpoint, testing::IsOk());
    if (!checkpoint.ok()) return {};
    const auto model = ModelUnderTest::Create(**checkpoint, {});
    EXPECT_THAT(model, testing::IsOk());
    if (!model.ok()) return {};
    const std::vector<int32_t> tokens = {5, 17, 400, 3, 3, 99, 256, 1};
    std::vector<float> all;
    EXPECT_THAT((*model)->TeacherForce(tokens, 0,
                                       [&all](int, absl::Span<const float> logits) {
                                         all.insert(all.end(), logits.begin(), logits.end());
                                       }),
                testing::IsOk());
    return all;
  }

  // `config` takes the quantization_config.
  static void ExpectSameLogits(std::string (*config)(const std::string&)) {
    const Form& form = GetParam();
    const testing::TempDir quantised, widened;
    const std::string text = config(
        absl::StrCat(R"({"num_hidden_layers": 2, "quantization_config": )", form.config, "}"));
    for (const testing::TempDir* dir : {&quantised, &widened}) {
      testing::WriteSyntheticCheckpoint(dir->path(), {.config_json = text});
    }
    ATELIER_ASSERT_OK_AND_ASSIGN(const auto plain, Checkpoint::Open(widened.path()));
    Tensors in_codes = TensorsOf(*plain), in_numbers = in_codes;
    uint32_t seed = 0;
    for (const PromisedTensor& tensor : FrontendTensors(plain->config())) {
      if (!IsQuantised(tensor)) continue;
      const std::string name(absl::StripSuffix(tensor.name, ".weight"));
      const Matrix matrix = form.write(name, static_cast<size_t>(tensor.shape[0]),
                                       static_cast<size_t>(tensor.shape[1]), ++seed);
      in_codes.erase(tensor.name);
      in_codes.insert(matrix.tensors.begin(), matrix.tensors.end());
      // Routers are computed in fp32.
      in_numbers[tensor.name] = absl::EndsWith(name, "gate")
                                    ? testing::Tensor(DType::kF32, tensor.shape, matrix.values)
                                    : Bf16(tensor, matrix.values);
    }
    EXPECT_GE(seed, 2u * 5 + 1);
    testing::WriteSafetensors(quantised.File("model.safetensors"), in_codes);
    testing::WriteSafetensors(widened.File("model.safetensors"), in_numbers);
    const std::vector<float> got = Logits(quantised.path()), want = Logits(widened.path());
    ASSERT_FALSE(want.empty());
    ASSERT_EQ(got.size(), want.size());
    EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0);
    for (const float value : want) ASSERT_TRUE(std::isfinite(value));
  }
};

TEST_P(QuantisedDense, LogitsAreThoseOfTheWidenedCheckpoint) {
  ExpectSameLogits(testing::TinyQwen3MoeConfig);
}

// With a dense layer, shared experts and biases.
TEST_P(QuantisedDense, LogitsAreThoseOfTheWidenedCheckpointWithSharedExperts) {
  ExpectSameLogits(testing::TinyGlm4MoeConfig);
}

INSTANTIATE_TEST_SUITE_P(Forms, QuantisedDense, ::testing::ValuesIn(kForms),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace atelier::golden
