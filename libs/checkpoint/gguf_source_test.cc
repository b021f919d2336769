#include "libs/checkpoint/gguf_source.h"

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/checkpoint/gguf_set.h"
#include "libs/checkpoint/tensor_floats.h"
#include "libs/model/dequantize.h"
#include "libs/testing/status_matchers.h"

namespace atelier {
namespace {

// What the public `gguf` package (0.19.0) wrote and dequantised: tools/gen_golden/gguf_types.py.
class GgufOracle : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<GgufSet> set = OpenGgufSet("libs/checkpoint/testdata/gguf/types.gguf");
    ATELIER_ASSERT_OK(set.status());
    set_ = std::make_unique<GgufSet>(*std::move(set));
    for (const GgufTensor& tensor : set_->files[0].header.tensors) tensors_[tensor.name] = &tensor;
  }

  TensorView View(const std::string& name) {
    const GgufTensor& tensor = *tensors_.at(name);
    return {name,         tensor.type->dtype.value_or(DType::kU8),
            tensor.shape, set_->Data(0, tensor),
            "types.gguf", tensor.type->dtype ? nullptr : tensor.type};
  }

  std::unique_ptr<GgufSet> set_;
  std::map<std::string, const GgufTensor*> tensors_;
};

TEST_F(GgufOracle, EveryTypeIsReadBitForBit) {
  int compared = 0;
  for (const auto& [name, tensor] : tensors_) {
    const size_t suffix = name.rfind(".blocks");
    if (suffix == std::string::npos) continue;
    SCOPED_TRACE(name);
    const TensorView blocks = View(name);
    const TensorView expected = View(name.substr(0, suffix) + ".values");
    ASSERT_EQ(blocks.shape, expected.shape);
    std::vector<float> values(NumElements(blocks));
    ReadFloats(blocks, 0, values.size(), values.data());
    ASSERT_EQ(values.size() * sizeof(float), expected.data.size());
    EXPECT_EQ(std::memcmp(values.data(), expected.data.data(), expected.data.size()), 0);
    ++compared;
  }
  EXPECT_EQ(compared, 19);
}

// Codes and scales reach the kernels through the same source.
TEST_F(GgufOracle, ReadsFromAnyBlockOn) {
  const TensorView q6 = View("Q6_K.blocks");
  std::vector<float> all(NumElements(q6)), second(256);
  ReadFloats(q6, 0, all.size(), all.data());
  ReadFloats(q6, 256, 256, second.data());
  EXPECT_EQ(std::memcmp(all.data() + 256, second.data(), 256 * sizeof(float)), 0);
  const TensorView q4 = View("Q4_0.blocks");
  ReadFloats(q4, 0, all.size(), all.data());
  const GgufSource source(*q4.blocks, q4.data.data(), 256);
  QuantBlock block;
  source.Read(1, 64, 96, block);
  std::vector<float> part(96);
  Dequantize(Method::kQ4_0, false, block, 96, part.data());
  EXPECT_EQ(std::memcmp(all.data() + 256 + 64, part.data(), 96 * sizeof(float)), 0);
}

}  // namespace
}  // namespace atelier
