#include "libs/checkpoint/quant_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/base/float16.h"
#include "libs/checkpoint/tensor_floats.h"
#include "libs/checkpoint/tensor_list.h"
#include "libs/testing/published_forms.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/synthetic_checkpoint.h"
#include "libs/testing/temp_dir.h"

namespace atelier {
namespace {

using ::atelier::testing::AddAwq;
using ::atelier::testing::AddCompressed;
using ::atelier::testing::AddGptq;
using ::atelier::testing::AddPackedMxFp4;
using ::atelier::testing::Dim;
using ::atelier::testing::Made;
using ::atelier::testing::Make;
using ::atelier::testing::Pairs;
using ::atelier::testing::RawTensor;
using ::atelier::testing::StatusIs;
using ::atelier::testing::Tensor;
using ::atelier::testing::Tensors;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr size_t kHidden = 192;
constexpr size_t kInner = 128;
constexpr size_t kGroup = 64;
constexpr char kExpert[] = "model.layers.0.mlp.experts.1.";

constexpr char kCompressed[] = R"({"quant_method": "compressed-tensors",
    "format": "pack-quantized", "config_groups": {"group_0": {"weights": {"num_bits": 4,
    "type": "int", "strategy": "group", "group_size": 64, "symmetric": true}}}})";
constexpr char kAsymmetric[] = R"({"quant_method": "compressed-tensors",
    "format": "pack-quantized", "config_groups": {"group_0": {"weights": {"num_bits": 4,
    "type": "int", "strategy": "group", "group_size": 64, "symmetric": false}}}})";
constexpr char kPerRow[] = R"({"quant_method": "compressed-tensors", "format": "pack-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int",
    "strategy": "channel", "symmetric": true}}}})";
constexpr char kGptq[] = R"({"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": false})";
constexpr char kGptqSymmetric[] =
    R"({"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": true})";
constexpr char kGptqNewer[] = R"({"quant_method": "gptq", "bits": 4, "group_size": 64,
    "sym": false, "checkpoint_format": "gptq_v2"})";
constexpr char kAwq[] = R"({"quant_method": "awq", "bits": 4, "group_size": 64})";
constexpr char kMxFp4[] =
    R"({"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"})";
constexpr char kBlocks[] = R"({"quant_method": "mxfp4"})";

bool IsMx(Method method) { return method == Method::kMXFP4 || method == Method::kMXFP8; }

// One layer, two experts, of which the second is looked at; the first is the same.
class QuantMatrixTest : public ::testing::Test {
 protected:
  using Add = std::function<void(const std::string&, const Made&, Tensors&)>;

  void AddExperts(const Add& add, size_t group = kGroup) {
    const size_t row_group = group == 0 ? kHidden : group;
    const size_t column_group = group == 0 ? kInner : group;
    gate_ = Make(kInner, kHidden, row_group, 1);
    up_ = Make(kInner, kHidden, row_group, 2);
    down_ = Make(kHidden, kInner, column_group, 3);
    for (const char* prefix : {"model.layers.0.mlp.experts.0.", kExpert}) {
      add(absl::StrCat(prefix, "gate_proj"), gate_, tensors_);
      add(absl::StrCat(prefix, "up_proj"), up_, tensors_);
      add(absl::StrCat(prefix, "down_proj"), down_, tensors_);
    }
  }

  absl::StatusOr<ExpertTensors> Find(
      const char* quantization,
      const char* sizes = R"("hidden_size": 192, "moe_intermediate_size": 128)") {
    const std::string config = testing::TinyQwen3MoeConfig(
        absl::StrCat("{", sizes, R"(, "num_hidden_layers": 1, "num_attention_heads": 4,
            "head_dim": 2, "vocab_size": 6, "num_experts": 2, "quantization_config": )",
                     quantization, "}"));
    testing::WriteSyntheticCheckpoint(dir_.path(), {.config_json = config});
    testing::WriteSafetensors(dir_.File("model.safetensors"), tensors_);
    auto opened = Checkpoint::Open(dir_.path());
    if (!opened.ok()) return opened.status();
    checkpoint_ = *std::move(opened);
    return FindExpert(*checkpoint_, 0, 1);
  }

  // Every element, read from the first group on and, where there is one, from the second.
  static void ExpectSame(const PublishedMatrix& matrix, const Made& made, Method method) {
    ASSERT_TRUE(matrix.quant.has_value());
    EXPECT_EQ(matrix.quant->method, method);
    const bool zeros = method >= Method::kINT4G32Z && method <= Method::kINT4G128Z;
    const size_t step = IsMx(method) ? 32 : kGroup;
    for (size_t row = 0; row < made.rows; ++row) {
      for (size_t first = 0; first < made.columns; first += step) {
        const size_t count = std::min(made.columns - first, size_t{128});
        QuantBlock block{};
        matrix.quant->source->Read(static_cast<int>(row), static_cast<int>(first),
                                   static_cast<int>(count), block);
        ASSERT_EQ(std::memcmp(block.codes, &made.codes[row * made.columns + first], count), 0);
        for (size_t j = 0; j * step < count; ++j) {
          const size_t at = row * made.groups() + (first + j * step) / made.group;
          if (IsMx(method)) {
            ASSERT_EQ(block.exponents[j], made.exponents[(row * made.columns + first) / 32 + j]);
            continue;
          }
          ASSERT_EQ(block.half_scales[j], made.scales[at]);
          if (zeros) {
            ASSERT_EQ(block.zero_codes[j], made.zeros[at]);
          }
        }
      }
    }
  }

  void ExpectExpert(const char* quantization, Method method, bool bf16_scales) {
    ATELIER_ASSERT_OK_AND_ASSIGN(const ExpertTensors expert, Find(quantization));
    ExpectSame(expert.gate, gate_, method);
    ExpectSame(expert.up, up_, method);
    ExpectSame(expert.down, down_, method);
    EXPECT_EQ(expert.gate.quant->bf16_scales, bf16_scales);
    EXPECT_EQ(expert.down.quant->bf16_scales, bf16_scales);
    ATELIER_EXPECT_OK(VerifyTensors(*checkpoint_, Role::kWorker));
  }

  // The same codes and exponents, whatever the shape, in all three.
  void ExpectExpertOfGate(const char* quantization, Method method) {
    ATELIER_ASSERT_OK_AND_ASSIGN(const ExpertTensors expert, Find(quantization));
    ExpectSame(expert.gate, gate_, method);
    ExpectSame(expert.up, gate_, method);
  }

  void ExpectRefused(const char* quantization, absl::StatusCode code,
                     const std::vector<std::string>& parts) {
    const absl::Status status = Find(quantization).status();
    EXPECT_EQ(status.code(), code) << status;
    for (const std::string& part : parts) EXPECT_THAT(status.message(), HasSubstr(part));
  }

  testing::TempDir dir_;
  Tensors tensors_;
  Made gate_, up_, down_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

TEST_F(QuantMatrixTest, ReadsCompressedTensors) {
  AddExperts([](auto& name, auto& made, auto& to) { AddCompressed(name, made, true, to); });
  ExpectExpert(kCompressed, Method::kINT4G64, true);
}

TEST_F(QuantMatrixTest, ReadsCompressedTensorsWithZeroPoints) {
  AddExperts([](auto& name, auto& made, auto& to) { AddCompressed(name, made, false, to); });
  ExpectExpert(kAsymmetric, Method::kINT4G64Z, true);
}

TEST_F(QuantMatrixTest, ReadsOneScalePerRow) {
  AddExperts([](auto& name, auto& made, auto& to) { AddCompressed(name, made, true, to); }, 0);
  ATELIER_ASSERT_OK_AND_ASSIGN(const ExpertTensors expert, Find(kPerRow));
  // H 192 is a multiple of 64, I 128 of 128: the largest group that divides.
  ExpectSame(expert.gate, gate_, Method::kINT4G64);
  EXPECT_EQ(expert.down.quant->method, Method::kINT4G128);
}

TEST_F(QuantMatrixTest, ReadsGptqWithItsZeroPointsLessOne) {
  AddExperts([](auto& name, auto& made, auto& to) { AddGptq(name, made, false, 1, to); });
  ExpectExpert(kGptq, Method::kINT4G64Z, false);
}

TEST_F(QuantMatrixTest, ReadsTheNewerGptqWithZeroPointsAsTheyAre) {
  AddExperts([](auto& name, auto& made, auto& to) { AddGptq(name, made, false, 0, to); });
  ExpectExpert(kGptqNewer, Method::kINT4G64Z, false);
}

TEST_F(QuantMatrixTest, KeepsSymmetricGptqWithoutZeroPoints) {
  AddExperts([](auto& name, auto& made, auto& to) { AddGptq(name, made, true, 1, to); });
  ExpectExpert(kGptqSymmetric, Method::kINT4G64, false);
}

TEST_F(QuantMatrixTest, ReadsAwqsInterleavedOutputs) {
  AddExperts(AddAwq);
  ExpectExpert(kAwq, Method::kINT4G64Z, false);
}

TEST_F(QuantMatrixTest, ReadsPackedMxFp4) {
  AddExperts(AddPackedMxFp4, 32);
  ExpectExpert(kMxFp4, Method::kMXFP4, false);
}

TEST_F(QuantMatrixTest, ReadsBlocksOfAllExpertsWithAlternatingGateAndUp) {
  gate_ = Make(kInner, kHidden, 32, 1);
  up_ = Make(kInner, kHidden, 32, 2);
  down_ = Make(kHidden, kInner, 32, 3);
  Made gate_up = Make(2 * 2 * kInner, kHidden, 32, 4), down = Make(2 * kHidden, kInner, 32, 5);
  for (size_t row = 0; row < kInner; ++row) {
    for (const auto& [part, from] : {std::pair{size_t{0}, &gate_}, {size_t{1}, &up_}}) {
      const size_t at = 2 * kInner + 2 * row + part;  // of expert 1
      std::memcpy(&gate_up.codes[at * kHidden], &from->codes[row * kHidden], kHidden);
      std::memcpy(&gate_up.exponents[at * kHidden / 32], &from->exponents[row * kHidden / 32],
                  kHidden / 32);
    }
  }
  std::copy(down_.codes.begin(), down_.codes.end(), down.codes.begin() + kHidden * kInner);
  std::copy(down_.exponents.begin(), down_.exponents.end(),
            down.exponents.begin() + kHidden * kInner / 32);
  const std::string prefix = "model.layers.0.mlp.experts.";
  tensors_[prefix + "gate_up_proj_blocks"] =
      Tensor(DType::kU8, {2, 2 * kInner, kHidden / 32, 16}, Pairs(gate_up.codes));
  tensors_[prefix + "gate_up_proj_scales"] =
      Tensor(DType::kU8, {2, 2 * kInner, kHidden / 32}, gate_up.exponents);
  tensors_[prefix + "down_proj_blocks"] =
      Tensor(DType::kU8, {2, kHidden, kInner / 32, 16}, Pairs(down.codes));
  tensors_[prefix + "down_proj_scales"] =
      Tensor(DType::kU8, {2, kHidden, kInner / 32}, down.exponents);
  ExpectExpert(kBlocks, Method::kMXFP4, false);
  tensors_.erase(prefix + "down_proj_scales");
  ExpectRefused(kBlocks, absl::StatusCode::kNotFound, {"down_proj_scales"});
}

// FP8 matrices [I, H] = [200, 288]: blocks of 128 that end early both ways.
class Fp8MatrixTest : public QuantMatrixTest {
 protected:
  static constexpr size_t kRows = 200;
  static constexpr size_t kColumns = 288;

  absl::StatusOr<ExpertTensors> FindFp8(const char* quantization) {
    return Find(quantization, R"("hidden_size": 288, "moe_intermediate_size": 200)");
  }

  // gate and up [I, H] and down [H, I] of both experts, with scales of `shape(rows, columns)`.
  template <typename T>
  void AddFp8(const char* suffix, DType dtype,
              const std::function<std::vector<int64_t>(size_t, size_t)>& shape,
              const std::function<T(uint32_t)>& scale) {
    for (const char* prefix : {"model.layers.0.mlp.experts.0.", kExpert}) {
      for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
        const bool down = part[0] == 'd';
        const size_t rows = down ? kColumns : kRows, columns = down ? kRows : kColumns;
        std::mt19937 random(static_cast<uint32_t>(rows));
        std::vector<uint8_t> codes(rows * columns);
        for (uint8_t& code : codes) code = static_cast<uint8_t>(random());
        size_t count = 1;
        for (const int64_t dim : shape(rows, columns)) count *= static_cast<size_t>(dim);
        std::vector<T> scales(count);
        for (T& value : scales) value = scale(static_cast<uint32_t>(random()));
        const std::string name = absl::StrCat(prefix, part);
        tensors_[name + ".weight"] = Tensor(DType::kF8E4M3, {Dim(rows), Dim(columns)}, codes);
        tensors_[name + suffix] = Tensor(dtype, shape(rows, columns), scales);
      }
    }
  }

  template <typename T>
  T At(const std::string& tensor, size_t index) {
    T value;
    std::memcpy(&value, tensors_[kExpert + tensor].data.data() + index * sizeof(T), sizeof(T));
    return value;
  }

  // Reads every part of 128 inputs, or what is left of them, of gate.
  void ForEachPart(const PublishedMatrix& gate,
                   const std::function<void(size_t row, size_t column, const QuantBlock&)>& visit) {
    for (size_t row = 0; row < kRows; ++row) {
      for (size_t column = 0; column < kColumns; column += 128) {
        const size_t count = std::min(kColumns - column, size_t{128});
        QuantBlock block{};
        gate.quant->source->Read(static_cast<int>(row), static_cast<int>(column),
                                 static_cast<int>(count), block);
        for (size_t i = 0; i < count; ++i) {
          ASSERT_EQ(block.codes[i], At<uint8_t>("gate_proj.weight", row * kColumns + column + i));
        }
        visit(row, column, block);
      }
    }
  }
};

float Fp8Scale(uint32_t bits) { return 1.0f + static_cast<float>(bits % 1000); }

TEST_F(Fp8MatrixTest, ReadsBlocksThatEndEarly) {
  AddFp8<float>(
      ".weight_scale_inv", DType::kF32,
      [](size_t rows, size_t columns) {
        return std::vector<int64_t>{Dim((rows + 127) / 128), Dim((columns + 127) / 128)};
      },
      Fp8Scale);
  constexpr char kConfig[] = R"({"quant_method": "fp8", "weight_block_size": [128, 128],
      "activation_scheme": "dynamic"})";
  ATELIER_ASSERT_OK_AND_ASSIGN(const ExpertTensors expert, FindFp8(kConfig));
  EXPECT_EQ(expert.gate.quant->method, Method::kFP8_BLOCK);
  ForEachPart(expert.gate, [&](size_t row, size_t column, const QuantBlock& block) {
    ASSERT_EQ(block.float_scales[0],
              At<float>("gate_proj.weight_scale_inv", row / 128 * 3 + column / 128));
  });
  tensors_[absl::StrCat(kExpert, "down_proj.weight_scale_inv")].shape = {2, 3};
  const absl::Status status = FindFp8(kConfig).status();
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("down_proj.weight_scale_inv"), HasSubstr("[3, 2]"))));
  tensors_.erase(absl::StrCat(kExpert, "down_proj.weight_scale_inv"));
  EXPECT_THAT(FindFp8(kConfig), StatusIs(absl::StatusCode::kNotFound, HasSubstr("scale_inv")));
}

TEST_F(Fp8MatrixTest, ReadsScalesPerRowOfBothShapes) {
  constexpr char kConfig[] = R"({"quant_method": "compressed-tensors", "format": "float-quantized",
      "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float",
      "strategy": "channel", "symmetric": true}}}})";
  for (const bool flat : {false, true}) {
    AddFp8<uint16_t>(
        ".weight_scale", DType::kBF16,
        [flat](size_t rows, size_t) {
          return flat ? std::vector<int64_t>{Dim(rows)} : std::vector<int64_t>{Dim(rows), 1};
        },
        [](uint32_t bits) { return ToBFloat16(Fp8Scale(bits)).bits; });
    ATELIER_ASSERT_OK_AND_ASSIGN(const ExpertTensors expert, FindFp8(kConfig));
    EXPECT_EQ(expert.gate.quant->method, Method::kFP8_ROW);
    ForEachPart(expert.gate, [&](size_t row, size_t, const QuantBlock& block) {
      const BFloat16 scale{At<uint16_t>("gate_proj.weight_scale", row)};
      ASSERT_EQ(block.float_scales[0], ToFloat(scale));
    });
  }
}

TEST_F(Fp8MatrixTest, ReadsMxFp8) {
  gate_ = Make(kInner, kHidden, 32, 1);
  for (const char* prefix : {"model.layers.0.mlp.experts.0.", kExpert}) {
    for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
      const bool down = part[0] == 'd';
      const size_t rows = down ? kHidden : kInner, columns = down ? kInner : kHidden;
      const std::string name = absl::StrCat(prefix, part);
      tensors_[name + ".weight"] = Tensor(DType::kF8E4M3, {Dim(rows), Dim(columns)}, gate_.codes);
      tensors_[name + ".weight_scale_inv"] =
          Tensor(DType::kU8, {Dim(rows), Dim(columns / 32)}, gate_.exponents);
    }
  }
  ExpectExpertOfGate(R"({"quant_method": "mxfp8"})", Method::kMXFP8);
}

TEST_F(QuantMatrixTest, NamesAbsentScalesWrongShapesAndDtypes) {
  AddExperts([](auto& name, auto& made, auto& to) { AddCompressed(name, made, true, to); });
  const std::string name = absl::StrCat(kExpert, "up_proj");
  const Tensors good = tensors_;
  tensors_.erase(name + ".weight_scale");
  ExpectRefused(kCompressed, absl::StatusCode::kNotFound, {"1.up_proj.weight_scale"});
  tensors_ = good;
  std::swap(tensors_[name + ".weight_scale"].shape[0], tensors_[name + ".weight_scale"].shape[1]);
  ExpectRefused(kCompressed, absl::StatusCode::kInvalidArgument,
                {"model.safetensors", "up_proj.weight_scale", "[3, 128]", "[128, 3]"});
  tensors_ = good;
  tensors_[name + ".weight_scale"].dtype = DType::kI16;
  ExpectRefused(kCompressed, absl::StatusCode::kInvalidArgument,
                {"up_proj.weight_scale", "I16", "BF16 or F16"});
  tensors_ = good;
  tensors_[name + ".weight_packed"].shape = {128, 12, 2};
  ExpectRefused(kCompressed, absl::StatusCode::kInvalidArgument,
                {"up_proj.weight_packed", "[128, 12, 2]", "[128, 24]"});
  tensors_ = good;
  tensors_[name + ".weight_shape"].data[0] = 1;
  ExpectRefused(kCompressed, absl::StatusCode::kInvalidArgument,
                {"up_proj.weight_shape", "[1, 192]"});
  tensors_ = good;
  tensors_[name + ".weight_g_idx"] =
      Tensor(DType::kI32, {Dim(kHidden)}, std::vector<int32_t>(kHidden));
  ExpectRefused(kCompressed, absl::StatusCode::kUnimplemented, {"up_proj", "g_idx"});
  tensors_ = good;
  ExpectRefused(kAsymmetric, absl::StatusCode::kNotFound, {"gate_proj.weight_zero_point"});
}

TEST_F(QuantMatrixTest, NamesGptqValuesThatContradictTheConfig) {
  AddExperts([](auto& name, auto& made, auto& to) { AddGptq(name, made, true, 1, to); });
  const std::string name = absl::StrCat(kExpert, "down_proj");
  const Tensors good = tensors_;
  tensors_[name + ".qzeros"].data[5] ^= 1;
  ExpectRefused(kGptqSymmetric, absl::StatusCode::kInvalidArgument,
                {"down_proj.qzeros", "sym=true"});
  tensors_ = good;
  tensors_[name + ".g_idx"].data[4] ^= 1;
  ExpectRefused(kGptqSymmetric, absl::StatusCode::kUnimplemented, {"down_proj.g_idx", "act-order"});
}

TEST_F(QuantMatrixTest, TheFrontendReadsQuantisedLayersOfItsOwn) {
  AddExperts([](auto& name, auto& made, auto& to) { AddCompressed(name, made, true, to); });
  ATELIER_ASSERT_OK(Find(kCompressed));
  for (const PromisedTensor& tensor : FrontendTensors(checkpoint_->config())) {
    size_t count = 1;
    for (const int64_t dim : tensor.shape) count *= static_cast<size_t>(dim);
    tensors_[tensor.name] = Tensor(DType::kBF16, tensor.shape, std::vector<uint16_t>(count));
  }
  const std::string name = "model.layers.0.self_attn.q_proj";
  const Made made = Make(8, kHidden, kGroup, 9);
  tensors_.erase(name + ".weight");
  AddCompressed(name, made, true, tensors_);
  ATELIER_ASSERT_OK(Find(kCompressed));
  ATELIER_EXPECT_OK(VerifyTensors(*checkpoint_, Role::kAll));
  ATELIER_ASSERT_OK_AND_ASSIGN(const PublishedMatrix matrix,
                               FindMatrix(*checkpoint_, name + ".weight", 8, kHidden));
  std::vector<float> row(kHidden);
  for (size_t r = 0; r < 8; ++r) {
    ReadRow(matrix, static_cast<int>(r), kHidden, row.data());
    for (size_t c = 0; c < kHidden; ++c) {
      const float scale = ToFloat(BFloat16{made.scales[r * made.groups() + c / kGroup]});
      const float want = scale * (static_cast<float>(made.codes[r * kHidden + c]) - 8);
      ASSERT_TRUE(row[c] == want || (std::isnan(row[c]) && std::isnan(want))) << r << ", " << c;
    }
  }
  // What it reads of the files: all parts of that matrix too.
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto spans, FrontendBytes(*checkpoint_));
  for (const char* part : {".weight_packed", ".weight_scale", ".weight_shape"}) {
    const TensorView tensor = checkpoint_->Find(name + part).value();
    EXPECT_TRUE(std::any_of(spans.begin(), spans.end(), [&](absl::Span<const uint8_t> span) {
      return span.data() == tensor.data.data() && span.size() == tensor.data.size();
    })) << part;
  }
  tensors_.erase(name + ".weight_scale");
  ATELIER_ASSERT_OK(Find(kCompressed));
  ATELIER_EXPECT_OK(VerifyTensors(*checkpoint_, Role::kWorker));
  EXPECT_THAT(VerifyTensors(*checkpoint_, Role::kFrontend),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("self_attn.q_proj.weight_scale")));
}

}  // namespace
}  // namespace atelier
