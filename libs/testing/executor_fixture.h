#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "libs/numa/node_arena.h"
#include "libs/testing/packed_weights.h"
#include "services/expert-worker/executor.h"

// What the executor's tests have in common.

namespace atelier::testing {

// Threads take the last task first, so that no result can rest on tasks running in order.
class TestArena final : public NodeArena {
 public:
  explicit TestArena(int num_threads) : num_threads_(num_threads) {}
  int num_threads() const override { return num_threads_; }
  int numa_node() const override { return 0; }
  void ParallelFor(int64_t count, const std::function<void(int64_t)>& body) override {
    std::atomic<int64_t> left{count};
    const auto work = [&] {
      for (int64_t i = left.fetch_sub(1) - 1; i >= 0; i = left.fetch_sub(1) - 1) body(i);
    };
    if (num_threads_ == 1) return work();
    std::vector<std::thread> threads;
    for (int t = 0; t < num_threads_; ++t) threads.emplace_back(work);
    for (std::thread& thread : threads) thread.join();
  }
  absl::StatusOr<std::unique_ptr<NodeMemory>> Allocate(size_t) override {
    return absl::UnimplementedError("the executor keeps its workspace itself");
  }
  absl::Status PageIn(const uint8_t*, size_t) override { return absl::OkStatus(); }

 private:
  int num_threads_;
};

// Rows and routing of some tokens, owned.
struct TestBatch {
  int layer = 0;
  int hidden = 0;
  int top_k = 0;
  std::vector<BFloat16> rows;
  std::vector<int32_t> ids;
  std::vector<float> weights;

  int num_tokens() const { return static_cast<int>(rows.size()) / hidden; }
  LayerBatch view() const {
    LayerBatch batch;
    batch.layer = layer;
    batch.tokens = {num_tokens(), hidden, rows.data()};
    batch.routing = {num_tokens(), top_k, ids.data(), weights.data()};
    return batch;
  }
  std::vector<float> Row(int token) const {
    std::vector<float> values;
    for (int i = 0; i < hidden; ++i) {
      values.push_back(ToFloat(rows[static_cast<size_t>(token * hidden + i)]));
    }
    return values;
  }
  void Append(const TestBatch& from, int token) {
    const auto row = from.rows.begin() + token * hidden;
    rows.insert(rows.end(), row, row + hidden);
    ids.insert(ids.end(), from.ids.begin() + token * top_k, from.ids.begin() + (token + 1) * top_k);
    weights.insert(weights.end(), from.weights.begin() + token * top_k,
                   from.weights.begin() + (token + 1) * top_k);
  }
};

// A layer whose batches are random: any expert id from -1 (skipped) to the last, repeated ones
// included, in any order.
struct TestLayer {
  int layer = 0;
  int hidden = 0;
  int num_experts = 0;

  TestBatch RandomBatch(int num_tokens, int top_k, uint32_t seed) const {
    TestBatch batch{layer, hidden, top_k, {}, {}, {}};
    for (float value : RandomBf16Values(static_cast<size_t>(num_tokens * hidden), seed)) {
      batch.rows.push_back(ToBFloat16(value));
    }
    std::mt19937 generator(seed);
    std::uniform_int_distribution<int32_t> expert(-1, num_experts - 1);
    std::uniform_real_distribution<float> weight(0.0f, 1.0f);
    for (int i = 0; i < num_tokens * top_k; ++i) {
      batch.ids.push_back(expert(generator));
      batch.weights.push_back(weight(generator));
    }
    return batch;
  }
};

struct ForwardResult {
  int num_not_finite = 0;
  std::vector<std::vector<float>> shards;  // [T, hidden] each, ending at an inaccessible page
};

inline ForwardResult RunForward(Executor& executor, size_t num_shards, const LayerBatch& batch) {
  const auto count =
      static_cast<size_t>(batch.tokens.num_tokens) * static_cast<size_t>(batch.tokens.hidden_size);
  std::vector<std::unique_ptr<GuardedBuffer<float>>> buffers;
  std::vector<float*> out;
  for (size_t s = 0; s < num_shards; ++s) {
    buffers.push_back(std::make_unique<GuardedBuffer<float>>(count));
    out.push_back(buffers.back()->data());
    std::fill_n(out.back(), count, 77.0f);
  }
  ForwardResult result;
  result.num_not_finite = executor.Forward(batch, out);
  for (float* shard : out) result.shards.emplace_back(shard, shard + count);
  return result;
}

inline ForwardResult RunForward(Executor& executor, size_t num_shards, const TestBatch& batch) {
  return RunForward(executor, num_shards, batch.view());
}

inline void ExpectSameBits(const std::vector<float>& want, const std::vector<float>& got,
                           int hidden) {
  ASSERT_EQ(want.size(), got.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(std::memcmp(&want[i], &got[i], sizeof(float)), 0)
        << "token " << i / static_cast<size_t>(hidden) << " column "
        << i % static_cast<size_t>(hidden) << ": " << got[i] << " instead of " << want[i];
  }
}

}  // namespace atelier::testing
