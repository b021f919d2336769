#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "libs/client/client.h"
#include "libs/testing/status_matchers.h"

// Calls of an ExpertClient over workers of the tiny GLM model, whose sums can be compared bit by
// bit.
namespace atelier::testing {

inline constexpr int kGlmHidden = 256;  // layers 1-3 with 16 experts, 4 per row
inline constexpr int kGlmTopK = 4;
inline constexpr int kGlmExperts = 16;
inline constexpr int kGlmLayers = 3;

struct RandomRows {
  RandomRows(int num_rows, unsigned seed) : count(num_rows) {
    std::mt19937 random(seed);
    std::normal_distribution<float> value;
    for (int i = 0; i < count * kGlmHidden; ++i) hidden.push_back(ToBFloat16(value(random)));
    for (int row = 0; row < count; ++row) {
      const auto first = static_cast<int32_t>(random() % kGlmExperts);
      for (int j = 0; j < kGlmTopK; ++j) {
        ids.push_back((first + j * 3) % kGlmExperts);
        weights.push_back(0.1f + static_cast<float>(j) * 0.17f);
      }
    }
  }
  int count;
  std::vector<BFloat16> hidden;
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

// The sums of every layer and batch; each call must succeed.
inline std::vector<std::vector<float>> SumsOfAll(ExpertClient& client,
                                                 const std::vector<RandomRows>& batches) {
  std::vector<std::vector<float>> all;
  for (int layer = 1; layer <= kGlmLayers; ++layer) {
    for (const RandomRows& rows : batches) {
      ForwardCall call;
      call.layer = layer;
      call.batch = {rows.count, kGlmHidden, rows.hidden.data()};
      call.routing = {rows.count, kGlmTopK, rows.ids.data(), rows.weights.data()};
      call.priority = rows.count > 5 ? CallPriority::kPrefill : CallPriority::kDecode;
      auto pending = client.Forward(call);
      EXPECT_THAT(pending, IsOk());
      std::vector<float>& sums = all.emplace_back(static_cast<size_t>(rows.count * kGlmHidden));
      if (!pending.ok()) continue;
      EXPECT_THAT((*pending)->Wait(sums.data()), IsOk());
    }
  }
  return all;
}

}  // namespace atelier::testing
