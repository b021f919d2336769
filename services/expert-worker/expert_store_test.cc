#include "services/expert-worker/expert_store.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/base/clock.h"
#include "libs/checkpoint/gguf_type.h"
#include "libs/kernels/aligned_buffer.h"
#include "libs/kernels/block_pack.h"
#include "libs/kernels/pack.h"
#include "libs/kernels/quantizer.h"
#include "libs/numa/node_arena.h"
#include "libs/numa/topology.h"
#include "libs/testing/read_file.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/synthetic_checkpoint.h"
#include "libs/testing/synthetic_gguf.h"
#include "libs/testing/temp_dir.h"
#include "services/expert-worker/choose_method.h"

namespace atelier {
namespace {

using ::atelier::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The tiny GLM model: H 256, layers 1-3 with 16 experts of I 192; layer 0 is dense.
class ExpertStoreTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = std::make_unique<testing::TempDir>();
    testing::WriteSyntheticCheckpoint(dir_->path(),
                                      {.config_json = testing::TinyGlm4MoeConfig(), .seed = 7});
  }
  static void TearDownTestSuite() { dir_.reset(); }

  void SetUp() override {
    ATELIER_ASSERT_OK_AND_ASSIGN(checkpoint_, Checkpoint::Open(dir_->path()));
    Topology topology;
    topology.nodes = {{0, {0, 1, 2}, 0}};
    ATELIER_ASSERT_OK_AND_ASSIGN(arena_,
                                 NodeArena::Create({.pin_threads = false}, topology, logger_));
  }

  absl::StatusOr<std::unique_ptr<ExpertStore>> Load(const ExpertStoreOptions& options) {
    return ExpertStore::Load(*checkpoint_, options, *arena_, clock_, logger_);
  }

  ExpertStoreOptions Options(Method method, std::vector<ShardSpec> shards) {
    ExpertStoreOptions options;
    options.methods = UniformMethods(checkpoint_->config(), method);
    options.shards = std::move(shards);
    return options;
  }

  static inline std::unique_ptr<testing::TempDir> dir_;
  std::vector<std::string> lines_;
  Logger logger_{Severity::kInfo, [this](absl::string_view line) { lines_.emplace_back(line); }};
  SystemClock clock_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<NodeArena> arena_;
};

constexpr ExpertRange kAllExperts = {0, 16};

ShardSpec Shard(ExpertRange experts, int slice_index = 0, int slice_count = 1,
                std::vector<int> layers = {}) {
  return {std::move(layers), experts.begin, experts.end, slice_index, slice_count};
}

// Packs rows [row, row + n) and columns [column, column + k) of `tensor` in one go and compares.
void ExpectPacked(const PackedMatrix& packed, const TensorView& tensor, int row, int column) {
  const size_t stride = static_cast<size_t>(tensor.shape[1]);
  const size_t offset = static_cast<size_t>(row) * stride + static_cast<size_t>(column);
  const WeightSource source = {tensor.dtype, tensor.data.data() + offset * DTypeBytes(tensor.dtype),
                               stride};
  const size_t bytes = PackedMatrixBytes(packed.method, packed.n, packed.k);
  auto* const block = static_cast<uint8_t*>(::operator new (bytes, std::align_val_t{64}));
  PackMatrix(source, packed.method, packed.n, packed.k, 0, packed.num_panels(), block);
  EXPECT_EQ(std::memcmp(packed.data, block, bytes), 0) << tensor.name;
  ::operator delete (block, std::align_val_t{64});
}

void ExpectShard(const Checkpoint& checkpoint, const ExpertStore& store, int shard) {
  const ShardSpec& spec = store.shards()[static_cast<size_t>(shard)];
  const IntermediateRange range = *SliceRange(192, spec.slice_index, spec.slice_count);
  for (const int layer : spec.layers) {
    for (int expert = spec.expert_begin; expert < spec.expert_end; ++expert) {
      const ExpertTensors tensors = *FindExpert(checkpoint, layer, expert);
      const ExpertView& view = store.expert(shard, layer, expert);
      ASSERT_EQ(view.gate.n, range.size());
      ASSERT_EQ(view.up.n, range.size());
      ASSERT_EQ(view.down.k, range.size());
      ASSERT_EQ(view.down.n, 256);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(view.down.data) % 64, 0u);
      ExpectPacked(view.gate, tensors.gate.tensor, range.begin, 0);
      ExpectPacked(view.up, tensors.up.tensor, range.begin, 0);
      ExpectPacked(view.down, tensors.down.tensor, 0, range.begin);
    }
  }
}

TEST_F(ExpertStoreTest, HoldsWhatADirectPackGives) {
  for (const Method method : {Method::kBF16, Method::kINT8, Method::kINT4G32, Method::kINT4G64,
                              Method::kMXFP4, Method::kQ8_0}) {
    ATELIER_ASSERT_OK_AND_ASSIGN(auto store, Load(Options(method, {Shard(kAllExperts)})));
    EXPECT_EQ(store->method(), method);
    EXPECT_EQ(store->hidden_size(), 256);
    EXPECT_EQ(store->num_experts(), 16);
    EXPECT_THAT(store->shards()[0].layers, ElementsAre(1, 2, 3));
    ExpectShard(*checkpoint_, *store, 0);
  }
}

TEST_F(ExpertStoreTest, CutsUnevenSlices) {
  // 12 granules of 16 over 5 slices: 48, 48, 32, 32, 32 columns.
  for (int slice = 0; slice < 5; ++slice) {
    for (const Method method : {Method::kBF16, Method::kINT8}) {
      ATELIER_ASSERT_OK_AND_ASSIGN(auto store,
                                   Load(Options(method, {Shard(kAllExperts, slice, 5)})));
      ExpectShard(*checkpoint_, *store, 0);
    }
  }
}

// I 192: slices of whole groups only, from any group on.
TEST_F(ExpertStoreTest, CutsSlicesBetweenGroupsOfInputs) {
  for (const auto& [method, count] : std::vector<std::pair<Method, int>>{
           {Method::kINT4G32, 2}, {Method::kINT4G32, 6}, {Method::kINT4G64, 3}}) {
    for (int slice = 0; slice < count; ++slice) {
      ATELIER_ASSERT_OK_AND_ASSIGN(auto store,
                                   Load(Options(method, {Shard({3, 5}, slice, count, {2})})));
      ExpectShard(*checkpoint_, *store, 0);
    }
  }
  // Two slices of 96: the second would begin within a group, and end with a whole one.
  for (const int slice : {0, 1}) {
    EXPECT_THAT(Load(Options(Method::kINT4G64, {Shard(kAllExperts, slice, 2)})),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("slices"), HasSubstr("groups of 64"),
                               HasSubstr("possible numbers of slices: 1, 3"))));
  }
  EXPECT_THAT(Load(Options(Method::kINT4G128, {Shard(kAllExperts)})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("choose another --method")));
}

// The codes that requantising gives, as a compressed-tensors checkpoint publishes them.
void AddPublished(const TensorView& tensor, std::map<std::string, testing::RawTensor>& to) {
  const auto rows = static_cast<int>(tensor.shape[0]), columns = static_cast<int>(tensor.shape[1]);
  const QuantizingSource source({tensor.dtype, tensor.data.data(), static_cast<size_t>(columns)},
                                Method::kINT4G32);
  testing::RawTensor packed{DType::kI32, {rows, columns / 8}, ""};
  testing::RawTensor scales{DType::kF16, {rows, columns / 32}, ""};
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < columns; column += 32) {
      QuantBlock block{};
      source.Read(row, column, 32, block);
      for (size_t i = 0; i < 32; i += 2) {
        packed.data.push_back(static_cast<char>(block.codes[i] | block.codes[i + 1] << 4));
      }
      scales.data.append(reinterpret_cast<const char*>(block.half_scales), 2);
    }
  }
  const std::string name = tensor.name.substr(0, tensor.name.rfind(".weight"));
  to[name + ".weight_packed"] = packed;
  to[name + ".weight_scale"] = scales;
}

class PublishedInt4 : public ExpertStoreTest {
 protected:
  void SetUp() override {
    ExpertStoreTest::SetUp();
    for (const int layer : {1, 2, 3}) {
      for (int expert = 0; expert < 16; ++expert) {
        const ExpertTensors tensors = *FindExpert(*checkpoint_, layer, expert);
        for (const PublishedMatrix* matrix : {&tensors.gate, &tensors.up, &tensors.down}) {
          AddPublished(matrix->tensor, tensors_);
        }
      }
    }
  }

  std::unique_ptr<Checkpoint> Publish() {
    testing::WriteSyntheticCheckpoint(
        published_dir_.path(),
        {.config_json = testing::TinyGlm4MoeConfig(R"({"quantization_config": {
             "quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups":
             {"group_0": {"weights": {"num_bits": 4, "group_size": 32, "symmetric": true}}}}})"),
         .seed = 7});
    testing::WriteSafetensors(published_dir_.File("model.safetensors"), tensors_);
    return Checkpoint::Open(published_dir_.path()).value();
  }

  std::map<std::string, testing::RawTensor> tensors_;
  testing::TempDir published_dir_;
};

TEST_F(PublishedInt4, IsHeldBitForBitInEverySlice) {
  const auto published = Publish();
  ATELIER_ASSERT_OK_AND_ASSIGN(const LayerMethods methods, ChooseMethods(*published, std::nullopt));
  const Method method = methods[1].down;
  EXPECT_EQ(method, Method::kINT4G32);
  EXPECT_EQ(MethodNames(published->config(), methods), "INT4_G32");
  for (const int slice : {0, 1, 2}) {
    const ExpertStoreOptions options = Options(method, {Shard({2, 9}, slice, 3)});
    ATELIER_ASSERT_OK_AND_ASSIGN(auto held,
                                 ExpertStore::Load(*published, options, *arena_, clock_, logger_));
    EXPECT_FALSE(held->expert(0, 1, 2).gate.bf16_scales);
    for (const int layer : {1, 2, 3}) {
      for (int expert = 2; expert < 9; ++expert) {
        const ExpertTensors floats = *FindExpert(*checkpoint_, layer, expert);
        const ExpertView& view = held->expert(0, layer, expert);
        ExpectPacked(view.gate, floats.gate.tensor, 64 * slice, 0);
        ExpectPacked(view.up, floats.up.tensor, 64 * slice, 0);
        ExpectPacked(view.down, floats.down.tensor, 0, 64 * slice);
      }
    }
  }
}

TEST_F(PublishedInt4, IsNotRoundedAgain) {
  const auto published = Publish();
  EXPECT_THAT(ChooseMethods(*published, Method::kINT8),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("method=int8"), HasSubstr("INT4_G32"), HasSubstr("auto"))));
  ATELIER_EXPECT_OK(ChooseMethods(*published, Method::kINT4G32));
  ATELIER_ASSERT_OK_AND_ASSIGN(const LayerMethods floats,
                               ChooseMethods(*checkpoint_, std::nullopt));
  EXPECT_EQ(floats, UniformMethods(checkpoint_->config(), Method::kBF16));
}

TEST_F(PublishedInt4, MixedWithFloatsIsRefusedByName) {
  const std::string name = "model.layers.2.mlp.experts.3.up_proj";
  tensors_.erase(name + ".weight_packed");
  tensors_[name + ".weight"] = {DType::kBF16, {192, 256}, std::string(192 * 256 * 2, '\0')};
  const auto published = Publish();
  const ExpertStoreOptions options = Options(Method::kINT4G32, {Shard(kAllExperts)});
  EXPECT_THAT(ExpertStore::Load(*published, options, *arena_, clock_, logger_),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr(name), HasSubstr("BF16"), HasSubstr("INT4_G32"))));
}

// The part of a published matrix that begins at (row, column), packed in one go.
void ExpectPackedBlocks(const PackedMatrix& packed, const PublishedMatrix& matrix, int row,
                        int column) {
  ASSERT_TRUE(matrix.quant);
  ASSERT_EQ(packed.method, matrix.quant->method);
  const size_t bytes = PackedMatrixBytes(packed.method, packed.n, packed.k);
  AlignedBuffer<uint8_t> block;
  PackQuantMatrix(QuantSlice(*matrix.quant->source, row, column), packed.method, packed.n, packed.k,
                  0, packed.num_panels(), block.Reserve(bytes));
  EXPECT_EQ(std::memcmp(packed.data, block.data(), bytes), 0) << matrix.tensor.name;
}

class PublishedGguf : public ExpertStoreTest {
 protected:
  // Down has rows of 192, which blocks of 256 do not divide.
  std::unique_ptr<Checkpoint> Publish(const std::string& gate, const std::string& up,
                                      const std::string& down, const std::string& down_of_3) {
    const auto type_of = [&](absl::string_view name) -> std::string {
      if (absl::StrContains(name, "gate_exps")) return gate;
      if (absl::StrContains(name, "up_exps")) return up;
      if (name == "blk.3.ffn_down_exps.weight") return down_of_3;
      return absl::StrContains(name, "down_exps") ? down : "F16";
    };
    testing::GgufOf(*checkpoint_, type_of).Write(published_dir_.File("m.gguf"));
    return Checkpoint::Open(published_dir_.File("m.gguf")).value();
  }
  testing::TempDir published_dir_;
};

TEST_F(PublishedGguf, KeepsEveryMatrixInItsOwnType) {
  const auto published = Publish("Q4_K", "Q6_K", "Q5_0", "Q8_0");
  ATELIER_ASSERT_OK_AND_ASSIGN(const LayerMethods methods, ChooseMethods(*published, std::nullopt));
  EXPECT_EQ(methods[1], (ExpertMethods{Method::kQ4_K, Method::kQ6_K, Method::kQ5_0}));
  EXPECT_EQ(methods[3], (ExpertMethods{Method::kQ4_K, Method::kQ6_K, Method::kQ8_0}));
  EXPECT_EQ(MethodNames(published->config(), methods), "Q8_0+Q5_0+Q4_K+Q6_K");
  const testing::TempDir store_dir;
  for (const int i : {0, 1, 2, 3, 4, 5}) {
    const int slice = i % 3;
    ExpertStoreOptions options;
    options.methods = methods;
    options.shards = {Shard({2, 9}, slice, 3)};
    if (i >= 3) options.store_dir = store_dir.path();
    ATELIER_ASSERT_OK_AND_ASSIGN(auto held,
                                 ExpertStore::Load(*published, options, *arena_, clock_, logger_));
    int64_t bytes = 0;
    for (const int layer : {1, 2, 3}) {
      for (int expert = 2; expert < 9; ++expert) {
        const ExpertTensors tensors = *FindExpert(*published, layer, expert);
        const ExpertView& view = held->expert(0, layer, expert);
        ExpectPackedBlocks(view.gate, tensors.gate, 64 * slice, 0);
        ExpectPackedBlocks(view.up, tensors.up, 64 * slice, 0);
        ExpectPackedBlocks(view.down, tensors.down, 0, 64 * slice);
        for (const PackedMatrix* matrix : {&view.gate, &view.up, &view.down}) {
          bytes += static_cast<int64_t>(PackedMatrixBytes(matrix->method, matrix->n, matrix->k));
        }
      }
    }
    EXPECT_EQ(held->bytes(), bytes);
  }
}

TEST_F(PublishedGguf, HoldsTheBlocksOfEveryType) {
  for (uint32_t id = 0; id < kNumGgufTypeIds; ++id) {
    const GgufType* type = FindGgufType(id);
    if (type == nullptr || !type->method) continue;
    const std::string name(type->name);
    SCOPED_TRACE(name);
    const auto published = Publish(name, name, type->elements == 32 ? name : "Q8_0", "Q8_0");
    ExpertStoreOptions options;
    ATELIER_ASSERT_OK_AND_ASSIGN(options.methods, ChooseMethods(*published, std::nullopt));
    EXPECT_EQ(options.methods[1].gate, *type->method);
    options.shards = {Shard({3, 5}, 0, 1, {1})};
    ATELIER_ASSERT_OK_AND_ASSIGN(auto held,
                                 ExpertStore::Load(*published, options, *arena_, clock_, logger_));
    const ExpertTensors tensors = *FindExpert(*published, 1, 4);
    const ExpertView& view = held->expert(0, 1, 4);
    ExpectPackedBlocks(view.gate, tensors.gate, 0, 0);
    ExpectPackedBlocks(view.up, tensors.up, 0, 0);
    ExpectPackedBlocks(view.down, tensors.down, 0, 0);
  }
}

// Floats beside blocks are kept as any floats are.
TEST_F(PublishedGguf, FloatsFollowTheRequestedMethod) {
  const auto published = Publish("F32", "F16", "BF16", "Q8_0");
  ATELIER_ASSERT_OK_AND_ASSIGN(LayerMethods methods, ChooseMethods(*published, std::nullopt));
  EXPECT_EQ(methods[1], (ExpertMethods{Method::kBF16, Method::kBF16, Method::kBF16}));
  EXPECT_EQ(methods[3].down, Method::kQ8_0);
  ATELIER_ASSERT_OK_AND_ASSIGN(methods, ChooseMethods(*published, Method::kQ8_0));
  EXPECT_EQ(MethodNames(published->config(), methods), "Q8_0");
  ExpertStoreOptions options;
  options.methods = methods;
  options.shards = {Shard(kAllExperts)};
  ATELIER_EXPECT_OK(ExpertStore::Load(*published, options, *arena_, clock_, logger_));
  EXPECT_THAT(ChooseMethods(*published, Method::kINT8),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("method=int8"), HasSubstr("layers.3"), HasSubstr("Q8_0"))));
}

// 192 inputs are six blocks of 32.
TEST_F(PublishedGguf, SlicesFallBetweenBlocks) {
  const auto published = Publish("Q4_K", "Q4_K", "IQ4_NL", "IQ4_NL");
  ATELIER_ASSERT_OK_AND_ASSIGN(const LayerMethods methods, ChooseMethods(*published, std::nullopt));
  ExpertStoreOptions options;
  options.methods = methods;
  options.shards = {Shard(kAllExperts, 0, 5)};
  EXPECT_THAT(ExpertStore::Load(*published, options, *arena_, clock_, logger_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("groups of 32 inputs that IQ4_NL keeps together"),
                             HasSubstr("possible numbers of slices: 1, 2, 3, 6"))));
}

TEST_F(PublishedGguf, RefusesTypesWithoutKernelsByName) {
  const auto published = Publish("Q4_K", "IQ2_XXS", "Q8_0", "Q8_0");
  EXPECT_THAT(ChooseMethods(*published, std::nullopt),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr("m.gguf"), HasSubstr("up_proj"), HasSubstr("IQ2_XXS"))));
}

TEST_F(ExpertStoreTest, HoldsSeveralShards) {
  ATELIER_ASSERT_OK_AND_ASSIGN(
      auto store, Load(Options(Method::kINT8, {Shard({0, 5}, 1, 2, {1, 3}), Shard({5, 16})})));
  ASSERT_EQ(store->shards().size(), 2u);
  ExpectShard(*checkpoint_, *store, 0);
  ExpectShard(*checkpoint_, *store, 1);
  EXPECT_TRUE(store->HoldsLayer(0, 3));
  EXPECT_TRUE(store->HoldsLayer(1, 2));
  for (const int layer : {-1, 0, 2, 4, 1000}) EXPECT_FALSE(store->HoldsLayer(0, layer)) << layer;
  const auto packed = [](int n, int k) {
    return static_cast<int64_t>(PackedMatrixBytes(Method::kINT8, n, k));
  };
  EXPECT_EQ(store->bytes(), 2 * 5 * (2 * packed(96, 256) + packed(256, 96)) +
                                3 * 11 * (2 * packed(192, 256) + packed(256, 192)));
}

TEST_F(ExpertStoreTest, RefusesShardsThatTheModelDoesNotHave) {
  const auto refusal = [&](std::vector<ShardSpec> shards) {
    return std::string(Load(Options(Method::kBF16, std::move(shards))).status().ToString());
  };
  EXPECT_THAT(refusal({}), HasSubstr("shards"));
  EXPECT_THAT(refusal({Shard({0, 17})}),
              AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("experts 0-16"), HasSubstr("0-15")));
  EXPECT_THAT(refusal({Shard({-1, 4})}), HasSubstr("experts -1-3"));
  EXPECT_THAT(refusal({Shard({4, 4})}), HasSubstr("experts 4-3"));
  EXPECT_THAT(refusal({Shard(kAllExperts, 2, 2)}), HasSubstr("slice 2/2"));
  EXPECT_THAT(refusal({Shard(kAllExperts, 0, 13)}), HasSubstr("at most 12 slices"));
  EXPECT_THAT(refusal({Shard(kAllExperts, 0, 1, {0})}),
              AllOf(HasSubstr("layer 0"), HasSubstr("1-3")));
  EXPECT_THAT(refusal({Shard(kAllExperts, 0, 1, {4})}), HasSubstr("layer 4"));
  EXPECT_THAT(refusal({Shard(kAllExperts, 0, 1, {2, 1})}), HasSubstr("ascend"));
  EXPECT_THAT(refusal({Shard({0, 5}), Shard({4, 16})}), HasSubstr("the same weights twice"));
}

TEST_F(ExpertStoreTest, RefusesWhatDoesNotFitBeforeAllocating) {
  ExpertStoreOptions options = Options(Method::kBF16, {Shard(kAllExperts)});
  ATELIER_ASSERT_OK_AND_ASSIGN(auto fits, Load(options));
  const int64_t needed = fits->bytes();
  options.available_bytes = [&] { return needed - 1; };
  EXPECT_THAT(Load(options), StatusIs(absl::StatusCode::kResourceExhausted,
                                      AllOf(HasSubstr(std::to_string(needed)),
                                            HasSubstr(std::to_string(needed - 1)))));
  options.available_bytes = [&] { return needed; };
  ATELIER_EXPECT_OK(Load(options));
}

TEST_F(ExpertStoreTest, ReportsProgressInBytes) {
  ATELIER_ASSERT_OK_AND_ASSIGN(auto store, Load(Options(Method::kBF16, {Shard(kAllExperts)})));
  EXPECT_THAT(lines_, Contains(AllOf(HasSubstr("loading_experts unit=bytes"),
                                     HasSubstr("total=" + std::to_string(store->bytes())),
                                     HasSubstr("percent=100"))));
}

// What this process has mapped of a file and touched, by /proc/self/smaps.
int64_t ResidentKib(const std::string& path) {
  std::ifstream smaps("/proc/self/smaps");
  bool counts = false;
  int64_t resident = 0, value = 0;
  for (std::string line; std::getline(smaps, line);) {
    if (absl::StrContains(line, " r") && absl::StrContains(line, "-")) {
      counts = absl::StrContains(line, path);
    }
    if (counts && std::sscanf(line.c_str(), "Rss: %ld kB", &value) == 1) resident += value;
  }
  return resident;
}

// Else a worker would have each layer twice at the end of loading.
TEST_F(ExpertStoreTest, LetsGoOfTheCheckpointLayerByLayer) {
  ATELIER_ASSERT_OK_AND_ASSIGN(auto store, Load(Options(Method::kBF16, {Shard(kAllExperts)})));
  EXPECT_LT(ResidentKib(dir_->path()), store->bytes() / 1024 / 3);
}

TEST_F(ExpertStoreTest, StopsBetweenLayersWhenCancelled) {
  ExpertStoreOptions options = Options(Method::kBF16, {Shard(kAllExperts)});
  int asked = 0;
  options.cancelled = [&] { return ++asked == 2; };
  EXPECT_THAT(Load(options), StatusIs(absl::StatusCode::kCancelled, HasSubstr("cancelled")));
  EXPECT_EQ(asked, 2);
}

// Views and products of a store in files are those of one in memory.
void ExpectSameWeights(const PackedMatrix& mapped, const PackedMatrix& packed) {
  ASSERT_EQ(mapped.method, packed.method);
  ASSERT_EQ(std::pair(mapped.n, mapped.k), std::pair(packed.n, packed.k));
  const size_t bytes = PanelBytes(packed.method, packed.k);
  const size_t stride = mapped.panel_stride > 0 ? mapped.panel_stride : bytes;
  for (int panel = 0; panel < packed.num_panels(); ++panel) {
    const auto p = static_cast<size_t>(panel);
    ASSERT_EQ(std::memcmp(mapped.data + p * stride, packed.data + p * bytes, bytes), 0) << panel;
  }
  if (packed.row_scales != nullptr) {
    ASSERT_EQ(std::memcmp(mapped.row_scales, packed.row_scales,
                          sizeof(float) * static_cast<size_t>(packed.n)),
              0);
  }
}

class StoreDirTest : public ExpertStoreTest {
 protected:
  ExpertStoreOptions InFiles(Method method, ShardSpec shard) {
    ExpertStoreOptions options = Options(method, {std::move(shard)});
    options.store_dir = store_dir_.path();
    return options;
  }
  void ExpectAsInMemory(ExpertStoreOptions options) {
    ATELIER_ASSERT_OK_AND_ASSIGN(auto mapped, Load(options));
    options.store_dir.clear();
    ATELIER_ASSERT_OK_AND_ASSIGN(auto packed, Load(options));
    const ShardSpec& spec = packed->shards()[0];
    EXPECT_EQ(mapped->shards()[0], spec);
    EXPECT_EQ(mapped->bytes(), packed->bytes());
    for (const int layer : spec.layers) {
      for (int expert = spec.expert_begin; expert < spec.expert_end; ++expert) {
        const ExpertView& a = mapped->expert(0, layer, expert);
        const ExpertView& b = packed->expert(0, layer, expert);
        ExpectSameWeights(a.gate, b.gate);
        ExpectSameWeights(a.up, b.up);
        ExpectSameWeights(a.down, b.down);
      }
    }
  }
  std::map<std::string, std::string> Files() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(store_dir_.path())) {
      if (!entry.is_regular_file()) continue;
      files[entry.path().filename()] = testing::ReadFile(entry.path());
    }
    return files;
  }
  // The path of the file whose name has `part`.
  std::string FileWith(const std::string& part) const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(store_dir_.path())) {
      if (absl::StrContains(entry.path().filename().string(), part)) return entry.path();
    }
    return "";
  }
  size_t NumPacked() const {
    return static_cast<size_t>(std::count_if(lines_.begin(), lines_.end(), [](const auto& line) {
      return absl::StrContains(line, "store_file_packed");
    }));
  }

  testing::TempDir store_dir_;
};

TEST_F(StoreDirTest, HoldsWhatMemoryWouldAndPacksOnce) {
  for (const Method method : {Method::kBF16, Method::kINT8, Method::kINT4G32, Method::kQ8_0}) {
    lines_.clear();
    for (const size_t packed : {6, 6}) {
      ExpectAsInMemory(InFiles(method, Shard(kAllExperts)));
      EXPECT_EQ(NumPacked(), packed) << MethodName(method);
    }
  }
}

// Gate and up are shared by all slices; down has a file per slice. Fewer experts and layers use the
// same files.
TEST_F(StoreDirTest, SharesGateAndUpAmongSlices) {
  for (const Method method : {Method::kBF16, Method::kINT8}) {
    lines_.clear();
    for (const int slice : {0, 1}) ExpectAsInMemory(InFiles(method, Shard(kAllExperts, slice, 2)));
    EXPECT_EQ(NumPacked(), 9u) << MethodName(method);
    ExpectAsInMemory(InFiles(method, Shard({3, 9}, 1, 2, {2, 3})));
    EXPECT_EQ(NumPacked(), 9u) << MethodName(method);
  }
  EXPECT_NE(FileWith("layer-0001.gate_up.experts-0-15.columns-0-191.pack"), "");
  EXPECT_NE(FileWith("layer-0001.down.experts-0-15.columns-96-191.pack"), "");
}

// Where nothing can be written, a slice is cut from whole panels if the layout can be cut there.
TEST_F(StoreDirTest, ServesAnySliceFromAReadOnlyStore) {
  ATELIER_ASSERT_OK(Load(InFiles(Method::kBF16, Shard(kAllExperts))));
  ATELIER_ASSERT_OK(Load(InFiles(Method::kINT8, Shard(kAllExperts))));
  lines_.clear();
  for (const int count : {1, 2, 3, 6}) {
    for (int slice = 0; slice < count; ++slice) {
      ExpertStoreOptions options = InFiles(Method::kBF16, Shard({3, 9}, slice, count, {2, 3}));
      options.store_system.create = [](const std::string&) { return -EROFS; };
      options.populate = true;
      ExpectAsInMemory(options);
    }
  }
  EXPECT_EQ(NumPacked(), 0u);
  EXPECT_THAT(lines_, Contains(AllOf(HasSubstr("store_slice_cut_in_place"),
                                     HasSubstr("columns-0-191"), HasSubstr("Read-only"))));
  ExpertStoreOptions options = InFiles(Method::kINT8, Shard(kAllExperts, 0, 2));
  options.store_system.create = [](const std::string&) { return -EROFS; };
  EXPECT_THAT(Load(options), StatusIs(absl::StatusCode::kPermissionDenied,
                                      HasSubstr("down.experts-0-15.columns-0-95")));
}

TEST_F(StoreDirTest, IsTheSameByteByByteWhenItWasInterrupted) {
  ExpertStoreOptions options = InFiles(Method::kINT8, Shard(kAllExperts));
  ATELIER_ASSERT_OK(Load(options));
  const auto uninterrupted = Files();
  EXPECT_EQ(uninterrupted.size(), 6u);
  std::filesystem::remove_all(FileWith("int8"));
  int asked = 0;
  options.cancelled = [&] { return ++asked == 4; };
  EXPECT_THAT(Load(options), StatusIs(absl::StatusCode::kCancelled, HasSubstr("cancelled")));
  EXPECT_EQ(Files().size(), 3u);
  // As after a kill -9 in the midst of the fourth.
  std::ofstream(FileWith("int8") + "/layer-0002.down.experts-0-15.columns-0-191.pack.partial")
      << std::string(100000, 'x');
  options.cancelled = nullptr;
  lines_.clear();
  ATELIER_ASSERT_OK(Load(options));
  EXPECT_EQ(NumPacked(), 3u);
  EXPECT_EQ(Files(), uninterrupted);
}

TEST_F(StoreDirTest, DamagedAndForeignFilesAreNamedAndMadeAnew) {
  const ExpertStoreOptions options = InFiles(Method::kBF16, Shard(kAllExperts));
  ATELIER_ASSERT_OK(Load(options));
  const auto good = Files();
  std::filesystem::resize_file(FileWith("layer-0001.gate_up"), 5000);
  std::filesystem::copy_file(FileWith("layer-0003.down"), FileWith("layer-0002.down"),
                             std::filesystem::copy_options::overwrite_existing);
  lines_.clear();
  ExpectAsInMemory(options);
  EXPECT_EQ(NumPacked(), 2u);
  EXPECT_THAT(lines_, Contains(AllOf(HasSubstr("store_file_rejected"),
                                     HasSubstr("layer-0001.gate_up"), HasSubstr("5000"))));
  EXPECT_THAT(lines_, Contains(AllOf(HasSubstr("store_file_rejected"), HasSubstr("layer-0002.down"),
                                     HasSubstr("layer=3"))));
  EXPECT_EQ(Files(), good);
}

TEST_F(StoreDirTest, AnotherCheckpointHasFilesOfItsOwn) {
  ATELIER_ASSERT_OK(Load(InFiles(Method::kBF16, Shard(kAllExperts))));
  testing::TempDir other;
  testing::WriteSyntheticCheckpoint(other.path(),
                                    {.config_json = testing::TinyGlm4MoeConfig(), .seed = 8});
  ATELIER_ASSERT_OK_AND_ASSIGN(checkpoint_, Checkpoint::Open(other.path()));
  ExpectAsInMemory(InFiles(Method::kBF16, Shard(kAllExperts)));
  EXPECT_EQ(NumPacked(), 12u);
}

TEST_F(StoreDirTest, AMissingFolderIsNotCreated) {
  ExpertStoreOptions options = InFiles(Method::kBF16, Shard(kAllExperts));
  options.store_dir += "/mount";
  EXPECT_THAT(Load(options), StatusIs(absl::StatusCode::kNotFound, HasSubstr(options.store_dir)));
}

TEST_F(StoreDirTest, ConcurrentLoadsShareTheWork) {
  constexpr int kLoads = 3;
  std::vector<std::vector<std::string>> lines(kLoads);
  std::vector<absl::Status> results(kLoads);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kLoads; ++i) {
    threads.emplace_back([&, i] {
      const Logger logger{Severity::kInfo,
                          [&lines, i](absl::string_view line) { lines[i].emplace_back(line); }};
      Topology topology;
      topology.nodes = {{0, {0, 1}, 0}};
      const auto arena = NodeArena::Create({.pin_threads = false}, topology, logger);
      const ExpertStoreOptions options = InFiles(Method::kINT8, Shard(kAllExperts));
      results[i] = ExpertStore::Load(*checkpoint_, options, **arena, clock_, logger).status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < kLoads; ++i) {
    ATELIER_EXPECT_OK(results[i]);
    lines_.insert(lines_.end(), lines[i].begin(), lines[i].end());
  }
  EXPECT_EQ(NumPacked(), 6u);
  EXPECT_EQ(Files().size(), 6u);
}

// Another process may finish a file after this one has looked and before it has the lock.
TEST_F(StoreDirTest, TakesWhatWasFinishedMeanwhile) {
  ExpertStoreOptions options = InFiles(Method::kBF16, Shard(kAllExperts, 0, 1, {1}));
  const PackedFileSystem real = options.store_system;
  bool raced = false;
  options.store_system.create = [&](const std::string& path) {
    if (!std::exchange(raced, true)) {
      ATELIER_EXPECT_OK(Load(InFiles(Method::kBF16, Shard(kAllExperts, 0, 1, {1}))));
    }
    return real.create(path);
  };
  ExpectAsInMemory(options);
  EXPECT_TRUE(raced);
  EXPECT_EQ(NumPacked(), 2u);
  EXPECT_EQ(Files().size(), 2u);
}

TEST_F(StoreDirTest, FilesOfTooFewExpertsDoNotDo) {
  ATELIER_ASSERT_OK(Load(InFiles(Method::kBF16, Shard({3, 9}))));
  ExpectAsInMemory(InFiles(Method::kBF16, Shard({0, 9})));
  ExpectAsInMemory(InFiles(Method::kBF16, Shard({3, 16})));
  EXPECT_EQ(NumPacked(), 18u);
}

// In memory they take no bytes; in files, which others use too, no pages are read.
TEST_F(StoreDirTest, SkippedExpertsAreNotHeld) {
  ExpertStoreOptions options = Options(Method::kBF16, {Shard({2, 16})});
  ATELIER_ASSERT_OK_AND_ASSIGN(auto whole, Load(options));
  ATELIER_ASSERT_OK_AND_ASSIGN(
      options.skipped,
      ExpertSet::Parse("1: 0-3\n2: 0-15", checkpoint_->config()));  // 2 and 14 of the shard
  for (const bool in_files : {false, true}) {
    if (in_files) options.store_dir = store_dir_.path();
    options.populate = in_files;
    ATELIER_ASSERT_OK_AND_ASSIGN(auto store, Load(options));
    EXPECT_EQ(store->shards(), whole->shards());
    EXPECT_EQ(store->bytes(), whole->bytes() / 42 * (42 - 16));
    for (const int layer : {1, 2, 3}) {
      for (int expert = 2; expert < 16; ++expert) {
        const ExpertView& held = store->expert(0, layer, expert);
        if (options.skipped.Contains(layer, expert)) {
          EXPECT_EQ(held.gate.data, nullptr);
          continue;
        }
        ExpectSameWeights(held.gate, whole->expert(0, layer, expert).gate);
        ExpectSameWeights(held.up, whole->expert(0, layer, expert).up);
        ExpectSameWeights(held.down, whole->expert(0, layer, expert).down);
      }
    }
  }
}

TEST_F(StoreDirTest, RefusesWhatDoesNotFitInMemoryBeforeItPacks) {
  ExpertStoreOptions options = InFiles(Method::kBF16, Shard(kAllExperts));
  options.available_bytes = [] { return 1000; };
  EXPECT_THAT(Load(options),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("1000 are available")));
  EXPECT_EQ(Files().size(), 0u);
}

TEST_F(StoreDirTest, PopulatesEverySlice) {
  for (const Method method : {Method::kBF16, Method::kINT8}) {
    ExpertStoreOptions options = InFiles(method, Shard(kAllExperts, 1, 3));
    options.populate = true;
    ATELIER_ASSERT_OK_AND_ASSIGN(auto store, Load(options));
    EXPECT_GE(ResidentKib(store_dir_.path()), store->bytes() / 1024);
    store.reset();
    ExpectAsInMemory(options);
  }
}

}  // namespace
}  // namespace atelier
