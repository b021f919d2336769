#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "libs/base/clock.h"
#include "libs/base/log.h"
#include "libs/checkpoint/tensor_floats.h"
#include "libs/checkpoint/tensor_list.h"
#include "libs/kernels/pack.h"
#include "libs/numa/node_arena.h"
#include "libs/testing/fetcher_fixture.h"
#include "libs/testing/synthetic_gguf.h"
#include "services/expert-worker/expert_store.h"

// Of checkpoints in every published form of codes and scales: what a worker fetches is all that its
// experts are packed from, and what a slice can do without does not come.

namespace atelier {
namespace {

using ::atelier::testing::FileServer;
using ::atelier::testing::RawTensor;
using Tensors = std::map<std::string, RawTensor>;

constexpr int64_t kHidden = 256, kInner = 512, kExperts = 4;

// Codes of any bits, scales of moderate size. Holes read as zeros, so no byte is one.
RawTensor RandomTensor(DType dtype, std::vector<int64_t> shape, std::mt19937& random) {
  size_t bytes = DTypeBytes(dtype);
  for (const int64_t dim : shape) bytes *= static_cast<size_t>(dim);
  RawTensor tensor{dtype, std::move(shape), std::string(bytes, '\0')};
  const auto digit = [&random](uint32_t choices) {
    return static_cast<char>(1 + random() % choices);
  };
  for (char& byte : tensor.data) byte = digit(127);
  // The highest byte of each is its exponent.
  const size_t size = DTypeBytes(dtype);
  const bool is_float = dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32;
  for (size_t i = size - 1; is_float && i < bytes; i += size) {
    tensor.data[i] = static_cast<char>(dtype == DType::kF16 ? 0x20 : 0x3c);
  }
  return tensor;
}

using Shape = std::vector<int64_t>;

struct Part {
  const char* suffix;
  DType dtype;
  Shape (*shape)(int64_t rows, int64_t columns);  // of a matrix [rows, columns]
};

struct Format {
  const char* name;
  const char* config;  // quantization_config
  std::vector<Part> parts;
  // Of the experts' bytes, what a worker of slice 1/2 reads: of matrices whose rows lie together
  // half of gate and up and all of down; where columns do, the other way round. And at most as much
  // more, of scales that are needed whole.
  double share, more;
};

constexpr double kRowsTogether = 2.0 / 3, kColumnsTogether = 5.0 / 6;

Shape Whole(int64_t rows, int64_t columns) { return {rows, columns}; }
// Rows stay rows; `per` columns share an element.
template <int per>
Shape Columns(int64_t rows, int64_t columns) {
  return {rows, columns / per};
}
template <int per_row, int per_column>
Shape Both(int64_t rows, int64_t columns) {
  return {rows / per_row, columns / per_column};
}
template <int per_row, int per_column>
Shape Turned(int64_t rows, int64_t columns) {
  return {columns / per_column, rows / per_row};
}

std::vector<Format> Formats() {
  const Part codes8{".weight", DType::kF8E4M3, Whole};
  // Of GPTQ and AWQ, by groups of 64 inputs.
  const Part zeros{".qzeros", DType::kI32, Turned<8, 64>};
  const Part scales{".scales", DType::kF16, Turned<1, 64>};
  return {
      {"Fp8Blocks",
       R"({"quant_method": "fp8", "weight_block_size": [128, 128]})",
       {codes8, {".weight_scale_inv", DType::kF32, Both<128, 128>}},
       kRowsTogether,
       0.01},
      {"MxFp8",
       R"({"quant_method": "mxfp8"})",
       {codes8, {".weight_scale_inv", DType::kU8, Columns<32>}},
       kRowsTogether,
       0.05},
      {"CompressedInt4",
       R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups":
           {"group_0": {"weights": {"num_bits": 4, "type": "int", "strategy": "group",
            "group_size": 64, "symmetric": false}}}})",
       {{".weight_packed", DType::kI32, Columns<8>},
        {".weight_scale", DType::kBF16, Columns<64>},
        {".weight_zero_point", DType::kI32, Both<8, 64>}},
       kRowsTogether,
       0.01},
      {"Gptq",
       R"({"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": false})",
       {{".qweight", DType::kI32, Turned<1, 8>}, zeros, scales},
       kColumnsTogether,
       0.03},
      {"Awq",
       R"({"quant_method": "awq", "bits": 4, "group_size": 64})",
       {{".qweight", DType::kI32, Turned<8, 1>}, zeros, scales},
       kColumnsTogether,
       0.03},
      {"PackedMxFp4",
       R"({"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"})",
       {{".weight_packed", DType::kU8, Columns<2>}, {".weight_scale", DType::kU8, Columns<32>}},
       kRowsTogether,
       0.01},
      {"FusedMxFp4", R"({"quant_method": "mxfp4"})", {}, kRowsTogether, 0.01},
  };
}

std::string Config(const char* quantization) {
  return testing::TinyQwen3MoeConfig(absl::StrCat(
      R"({"num_hidden_layers": 2, "num_experts": )", kExperts, R"(, "moe_intermediate_size": )",
      kInner, R"(, "hidden_size": )", kHidden,
      quantization == nullptr ? "" : absl::StrCat(R"(, "quantization_config": )", quantization),
      "}"));
}

// As the name says, [experts, rows, columns] of codes in blocks, two a byte, and their scales.
void AddFused(const std::string& name, int64_t rows, int64_t columns, std::mt19937& random,
              Tensors& to) {
  to[name + "_blocks"] = RandomTensor(DType::kU8, {kExperts, rows, columns / 32, 16}, random);
  to[name + "_scales"] = RandomTensor(DType::kU8, {kExperts, rows, columns / 32}, random);
}

Tensors ExpertsOf(const Format& format, std::mt19937& random) {
  Tensors tensors;
  for (int layer = 0; layer < 2; ++layer) {
    const std::string experts = absl::StrCat("model.layers.", layer, ".mlp.experts.");
    if (format.parts.empty()) {
      AddFused(experts + "gate_up_proj", 2 * kInner, kHidden, random, tensors);
      AddFused(experts + "down_proj", kHidden, kInner, random, tensors);
    }
    for (int expert = 0; expert < kExperts; ++expert) {
      for (const std::string matrix : {"gate_proj", "up_proj", "down_proj"}) {
        const bool is_down = matrix == "down_proj";
        for (const Part& part : format.parts) {
          tensors[absl::StrCat(experts, expert, ".", matrix, part.suffix)] = RandomTensor(
              part.dtype, is_down ? part.shape(kHidden, kInner) : part.shape(kInner, kHidden),
              random);
        }
      }
    }
  }
  return tensors;
}

class QuantisedFetchTest : public testing::FetcherFixture {
 protected:
  // Of the whole checkpoint at `published`, slice 1/2 of experts 1 to 2.
  void ExpectWorkerLoadsTheSame(const std::string& published, const std::string& file) {
    const ShardSpec shard{{}, 1, 3, 1, 2};
    FileServer server(published);
    FetcherOptions options = Options();
    options.source = ParseRemoteSource(server.url() + file, kDefaultHub).value();
    ATELIER_ASSERT_OK(Fetch(&shard, std::move(options)));
    const std::string partial_path = file.empty() ? dir_.path() : dir_.File(file);
    const auto partial = Open(partial_path);
    const auto whole = Open(file.empty() ? published : absl::StrCat(published, "/", file));
    EXPECT_FALSE(partial->IsWhole());
    const auto mine = Load(*partial, shard), theirs = Load(*whole, shard);
    ASSERT_NE(mine, nullptr);
    ASSERT_NE(theirs, nullptr);
    for (const int layer : {0, 1}) {
      for (const int expert : {1, 2}) {
        ExpectSame(mine->expert(0, layer, expert), theirs->expert(0, layer, expert));
      }
    }
  }

  std::unique_ptr<ExpertStore> Load(const Checkpoint& checkpoint, const ShardSpec& shard) {
    const Logger quiet(Severity::kError);
    SystemClock clock;
    const auto arena = NodeArena::Create({}, Topology::Detect(), quiet).value();
    ExpertStoreOptions options;
    options.methods = ChooseMethods(checkpoint, std::nullopt).value();
    options.shards = {shard};
    auto store = ExpertStore::Load(checkpoint, options, *arena, clock, quiet);
    EXPECT_THAT(store, testing::IsOk());
    return store.ok() ? *std::move(store) : nullptr;
  }

  static void ExpectSame(const ExpertView& a, const ExpertView& b) {
    for (const PackedMatrix ExpertView::*of :
         {&ExpertView::gate, &ExpertView::up, &ExpertView::down}) {
      const PackedMatrix& mine = a.*of;
      const PackedMatrix& theirs = b.*of;
      ASSERT_EQ(mine.method, theirs.method);
      const size_t bytes = PackedMatrixBytes(mine.method, mine.n, mine.k);
      EXPECT_EQ(std::memcmp(mine.data, theirs.data, bytes), 0) << MethodName(mine.method);
    }
  }
};

class QuantisedFormatFetchTest : public QuantisedFetchTest,
                                 public ::testing::WithParamInterface<Format> {};

TEST_P(QuantisedFormatFetchTest, AWorkerGetsAllThatItsExpertsArePackedFrom) {
  std::mt19937 random(7);
  const Format& format = GetParam();
  testing::TempDir published;
  testing::WriteSyntheticCheckpoint(published.path(), {.config_json = Config(format.config)});
  const Tensors tensors = ExpertsOf(format, random);
  testing::WriteSafetensors(published.File("model.safetensors"), tensors);
  ExpectWorkerLoadsTheSame(published.path(), "");
  uint64_t experts = 0;
  for (const auto& [name, tensor] : tensors) experts += tensor.data.size();
  // Two of four; and header and ends.
  const double read = static_cast<double>(missing_.wanted) / (static_cast<double>(experts) / 2);
  const double header = 40'000 / (static_cast<double>(experts) / 2);
  EXPECT_GE(read, format.share);
  EXPECT_LE(read, format.share + format.more + header);
}

// Attention in the format too: what a frontend fetches is all that it widens them from.
TEST_P(QuantisedFormatFetchTest, AFrontendGetsAllThatItsMatricesAreWidenedFrom) {
  const Format& format = GetParam();
  if (format.parts.empty()) GTEST_SKIP() << "is a form of experts only";
  std::mt19937 random(8);
  testing::TempDir published;
  testing::WriteSyntheticCheckpoint(published.path(), {.config_json = Config(format.config)});
  Tensors tensors = ExpertsOf(format, random);
  const std::vector<PromisedTensor> promised = FrontendTensors(Open(published.path())->config());
  for (const PromisedTensor& tensor : promised) {
    const std::string name(absl::StripSuffix(tensor.name, ".weight"));
    if (!absl::StrContains(name, "_proj")) {
      tensors[tensor.name] = RandomTensor(DType::kBF16, tensor.shape, random);
      continue;
    }
    for (const Part& part : format.parts) {
      tensors[name + part.suffix] =
          RandomTensor(part.dtype, part.shape(tensor.shape[0], tensor.shape[1]), random);
    }
  }
  testing::WriteSafetensors(published.File("model.safetensors"), tensors);
  FileServer server(published.path());
  FetcherOptions options = Options();
  options.source = ParseRemoteSource(server.url(), kDefaultHub).value();
  ATELIER_ASSERT_OK(Fetch(nullptr, std::move(options)));
  ExpectFrontendReads(published.path());
  const auto partial = Open(dir_.path()), whole = Open(published.path());
  EXPECT_FALSE(partial->IsWhole());
  for (const PromisedTensor& tensor : promised) {
    if (tensor.shape.size() != 2) continue;
    const int rows = static_cast<int>(tensor.shape[0]), columns = static_cast<int>(tensor.shape[1]);
    const PublishedMatrix mine = FindMatrix(*partial, tensor.name, rows, columns).value();
    const PublishedMatrix theirs = FindMatrix(*whole, tensor.name, rows, columns).value();
    EXPECT_EQ(mine.quant.has_value(), absl::StrContains(tensor.name, "_proj"));
    std::vector<float> a(static_cast<size_t>(columns)), b = a;
    for (int row = 0; row < rows; ++row) {
      ReadRow(mine, row, columns, a.data());
      ReadRow(theirs, row, columns, b.data());
      ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << tensor.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, QuantisedFormatFetchTest, ::testing::ValuesIn(Formats()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_F(QuantisedFetchTest, OfGgufWithTypesOfTheirOwnForEachMatrix) {
  testing::TempDir floats, published;
  testing::WriteSyntheticCheckpoint(floats.path(), {.config_json = Config(nullptr)});
  testing::GgufOf(*Open(floats.path()), [](absl::string_view name) {
    if (absl::StrContains(name, "ffn_down_exps")) return "Q6_K";
    return absl::StrContains(name, "ffn_gate_exps") ? "Q4_K"
           : absl::StrContains(name, "_exps")       ? "Q5_0"
                                                    : "BF16";
  }).Write(published.File("m.gguf"));
  ExpectWorkerLoadsTheSame(published.path(), "m.gguf");
}

}  // namespace
}  // namespace atelier
