#include "services/expert-worker/executor.h"

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <new>
#include <random>
#include <tuple>

#include "gtest/gtest.h"
#include "libs/kernels/kernel_table.h"
#include "libs/numa/node_arena.h"
#include "libs/testing/executor_fixture.h"
#include "libs/testing/packed_weights.h"
#include "libs/testing/supported_kernels.h"
#include "services/expert-worker/expert_store.h"

namespace {

std::atomic<int64_t> num_allocations{0};

// Not inlined, nor the deletes: g++ would take malloc and free in them for a mismatched pair.
[[gnu::noinline]] void* CountedAllocate(size_t bytes, size_t alignment) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  void* memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) std::abort();
  return memory;
}

[[gnu::noinline]] void Free(void* memory) { std::free(memory); }

}  // namespace

void* operator new(size_t bytes) { return CountedAllocate(bytes + 1, alignof(std::max_align_t)); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return CountedAllocate(bytes + 1, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { Free(memory); }
void operator delete(void* memory, size_t) noexcept { Free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { Free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { Free(memory); }

namespace atelier {
namespace {

using testing::ForwardResult;
using testing::PreparedRows;
using testing::RandomBf16Values;
using testing::RunForward;
using testing::TestArena;
using testing::TestBatch;

constexpr int kHidden = 150, kInner = 90, kNumExperts = 6, kLayer = 3;

// Random experts of a model with hidden size 150 and intermediate size 90, both no multiple of 16.
class TestStore final : public ExpertStore {
 public:
  TestStore(Method method, std::vector<ShardSpec> shards) : method_(method), shards_(shards) {
    for (size_t s = 0; s < shards_.size(); ++s) {
      for (int expert = shards_[s].expert_begin; expert < shards_[s].expert_end; ++expert) {
        views_[{static_cast<int>(s), expert}] = MakeExpert(shards_[s], expert);
      }
    }
  }

  const std::vector<ShardSpec>& shards() const override { return shards_; }
  Method method() const override { return method_; }
  int hidden_size() const override { return kHidden; }
  int num_experts() const override { return kNumExperts; }
  bool HoldsLayer(int shard, int layer) const override {
    return shards_[static_cast<size_t>(shard)].layers.front() == layer;
  }
  const ExpertView& expert(int shard, int layer, int expert) const override {
    ATELIER_CHECK(HoldsLayer(shard, layer));
    return views_.at({shard, expert});
  }
  int64_t bytes() const override { return 0; }

 private:
  ExpertView MakeExpert(const ShardSpec& shard, int expert) {
    const IntermediateRange range =
        SliceRange(kInner, shard.slice_index, shard.slice_count).value();
    const size_t count = static_cast<size_t>(kInner) * kHidden;
    const uint32_t seed = static_cast<uint32_t>(expert) * 10 + 1;
    const size_t first_row = static_cast<size_t>(range.begin) * kHidden;
    ExpertView view;
    view.gate = Pack(RandomBf16Values(count, seed, 0.1f).data() + first_row, kHidden, range.size(),
                     kHidden);
    view.up = Pack(RandomBf16Values(count, seed + 1, 0.1f).data() + first_row, kHidden,
                   range.size(), kHidden);
    view.down = Pack(RandomBf16Values(count, seed + 2, 0.1f).data() + range.begin, kInner, kHidden,
                     range.size());
    return view;
  }
  PackedMatrix Pack(const float* values, size_t stride, int n, int k) {
    blocks_.push_back(
        std::make_unique<testing::GuardedBuffer<uint8_t>>(PackedMatrixBytes(method_, n, k)));
    const PackedMatrix matrix = PackedMatrixAt(method_, n, k, blocks_.back()->data());
    PackMatrix({DType::kF32, values, stride}, method_, n, k, 0, matrix.num_panels(),
               blocks_.back()->data());
    return matrix;
  }

  Method method_;
  std::vector<ShardSpec> shards_;
  std::vector<std::unique_ptr<testing::GuardedBuffer<uint8_t>>> blocks_;
  std::map<std::pair<int, int>, ExpertView> views_;
};

ShardSpec Shard(int expert_begin, int expert_end, int slice_index = 0, int slice_count = 1) {
  return {{kLayer}, expert_begin, expert_end, slice_index, slice_count};
}

constexpr testing::TestLayer kTestLayer{kLayer, kHidden, kNumExperts};

// One row at a time, one expert after the other: what Forward must equal bit by bit.
std::vector<float> ExpectedShard(const TestStore& store, const KernelTable& kernels, int shard,
                                 const TestBatch& batch) {
  const ShardSpec& spec = store.shards()[static_cast<size_t>(shard)];
  std::vector<float> sums(batch.rows.size(), 0.0f);
  std::vector<float> product(160);
  for (int t = 0; t < batch.num_tokens(); ++t) {
    const PreparedRows row(store.method(), batch.Row(t), 1, kHidden);
    for (int expert = spec.expert_begin; expert < spec.expert_end; ++expert) {
      for (int j = t * batch.top_k; j < (t + 1) * batch.top_k; ++j) {
        if (batch.ids[static_cast<size_t>(j)] != expert) continue;
        RunExpert(kernels, store.expert(shard, kLayer, expert), row.rows(), product.data(), 160);
        const float weight = batch.weights[static_cast<size_t>(j)];
        for (int i = 0; i < kHidden; ++i) {
          sums[static_cast<size_t>(t * kHidden + i)] += weight * product[static_cast<size_t>(i)];
        }
      }
    }
  }
  return sums;
}

void ExpectSameBits(const std::vector<float>& want, const std::vector<float>& got) {
  testing::ExpectSameBits(want, got, kHidden);
}

class ExecutorOnEveryIsa : public ::testing::TestWithParam<KernelEntry> {
 protected:
  ForwardResult Forward(const TestStore& store, const TestBatch& batch, int num_threads = 1) {
    TestArena arena(num_threads);
    return RunForward(*CreateExecutor(store, kernels_, arena), store.shards().size(), batch);
  }
  Method method() const { return GetParam().method; }

  KernelTable kernels_ = KernelTable::ForEntry(GetParam());
};

TEST_P(ExecutorOnEveryIsa, EqualsOneRowAtATimeInAscendingExpertOrder) {
  const TestStore store(method(), {Shard(0, 6, 0, 2), Shard(0, 6, 1, 2), Shard(2, 5)});
  for (int num_tokens : {0, 1, 2, 7, 130}) {
    const TestBatch batch =
        kTestLayer.RandomBatch(num_tokens, 4, static_cast<uint32_t>(num_tokens) + 1);
    std::vector<std::vector<float>> want;
    for (int shard = 0; shard < 3; ++shard) {
      want.push_back(ExpectedShard(store, kernels_, shard, batch));
    }
    for (int num_threads : {1, 2, 3, 8}) {
      SCOPED_TRACE(::testing::Message()
                   << num_tokens << " tokens (seed: one more), " << num_threads << " threads");
      const ForwardResult result = Forward(store, batch, num_threads);
      EXPECT_EQ(result.num_not_finite, 0);
      for (size_t shard = 0; shard < 3; ++shard) {
        ASSERT_NO_FATAL_FAILURE(ExpectSameBits(want[shard], result.shards[shard]));
      }
    }
  }
}

TEST_P(ExecutorOnEveryIsa, RowBitsDoNotDependOnTheRestOfTheBatch) {
  const TestStore store(method(), {Shard(0, 6)});
  const TestBatch all = kTestLayer.RandomBatch(90, 3, 5);
  const ForwardResult together = Forward(store, all, 2);
  std::mt19937 generator(6);
  for (size_t num_others : {0, 1, 5, 40}) {
    const int token = static_cast<int>(generator() % 90);
    TestBatch part{kLayer, kHidden, all.top_k, {}, {}, {}};
    for (size_t i = 0; i < num_others; ++i) part.Append(all, static_cast<int>(generator() % 90));
    part.Append(all, token);
    const std::vector<float> got = Forward(store, part, 3).shards[0];
    const std::vector<float>& want = together.shards[0];
    ExpectSameBits({want.begin() + token * kHidden, want.begin() + (token + 1) * kHidden},
                   {got.end() - kHidden, got.end()});
  }
}

TEST_P(ExecutorOnEveryIsa, CountsRowsThatAreNotFiniteAndKeepsThemApart) {
  const TestStore store(method(), {Shard(0, 3), Shard(3, 6)});
  TestBatch batch = kTestLayer.RandomBatch(20, 2, 7);
  // Token 4: at an expert of the second shard only. Token 5: nowhere, so its NaN is not seen.
  batch.ids[8] = 3, batch.ids[9] = -1, batch.ids[10] = batch.ids[11] = -1;
  batch.ids[18] = 0;  // token 9, by an infinite weight
  const ForwardResult clean = Forward(store, batch);
  batch.rows[4 * kHidden + 17].bits = 0x7fc0;
  batch.rows[5 * kHidden + 149].bits = 0x7f80;
  batch.weights[18] = std::numeric_limits<float>::infinity();
  const ForwardResult dirty = Forward(store, batch, 3);
  EXPECT_EQ(clean.num_not_finite, 0);
  EXPECT_EQ(dirty.num_not_finite, 2);
  for (size_t shard = 0; shard < 2; ++shard) {
    for (size_t i = 0; i < batch.rows.size(); ++i) {
      const size_t token = i / kHidden;
      const float value = dirty.shards[shard][i];
      if ((token == 4 && shard == 1) || (token == 9 && shard == 0)) {
        EXPECT_FALSE(std::isfinite(value)) << token;
      } else {
        EXPECT_EQ(value, clean.shards[shard][i]) << "token " << token << " shard " << shard;
      }
      const bool nowhere = token == 5 || (token == 4 && shard == 0);
      EXPECT_TRUE(!nowhere || value == 0.0f) << token;
    }
  }
}

TEST_P(ExecutorOnEveryIsa, ShardWithoutTheLayerAnswersZeros) {
  std::vector<ShardSpec> shards = {Shard(0, 6), Shard(0, 6)};
  shards[1].layers = {kLayer + 1};
  const TestStore store(method(), shards);
  const TestBatch batch = kTestLayer.RandomBatch(3, 2, 8);
  const ForwardResult result = Forward(store, batch);
  ExpectSameBits(ExpectedShard(store, kernels_, 0, batch), result.shards[0]);
  ExpectSameBits(std::vector<float>(batch.rows.size(), 0.0f), result.shards[1]);
}

TEST_P(ExecutorOnEveryIsa, AllocatesNothingOnceTheWorkspaceHasGrown) {
  const TestStore store(method(), {Shard(0, 6)});
  TestArena arena(1);
  const std::unique_ptr<Executor> executor = CreateExecutor(store, kernels_, arena);
  const TestBatch large = kTestLayer.RandomBatch(40, 4, 9);
  const TestBatch small = kTestLayer.RandomBatch(7, 2, 10);
  std::vector<float> buffer(large.rows.size());
  const std::vector<float*> out = {buffer.data()};
  executor->Forward(large.view(), out);
  const LayerBatch small_view = small.view(), large_view = large.view();
  const int64_t before = num_allocations.load();
  executor->Forward(small_view, out);
  executor->Forward(large_view, out);
  EXPECT_EQ(num_allocations.load(), before);
}

TEST_P(ExecutorOnEveryIsa, AllocatesNothingOnTheNodesThreads) {
  const TestStore store(method(), {Shard(0, 6, 0, 2), Shard(0, 6, 1, 2)});
  const Logger logger;
  NodeArenaOptions options;
  options.num_threads = std::min(2, Topology::Detect().num_cpus());
  const auto arena = NodeArena::Create(options, Topology::Detect(), logger);
  ASSERT_TRUE(arena.ok());
  const std::unique_ptr<Executor> executor = CreateExecutor(store, kernels_, **arena);
  const TestBatch batch = kTestLayer.RandomBatch(200, 4, 12);
  std::vector<float> buffers[2];
  for (std::vector<float>& buffer : buffers) buffer.resize(batch.rows.size());
  const std::vector<float*> out = {buffers[0].data(), buffers[1].data()};
  const LayerBatch view = batch.view();
  for (int i = 0; i < 3; ++i) executor->Forward(view, out);
  const int64_t before = num_allocations.load();
  for (int i = 0; i < 20; ++i) executor->Forward(view, out);
  EXPECT_EQ(num_allocations.load(), before);
}

INSTANTIATE_TEST_SUITE_P(Kernels, ExecutorOnEveryIsa,
                         ::testing::ValuesIn(testing::SupportedPlainKernels()),
                         testing::KernelName);

}  // namespace
}  // namespace atelier
