#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "services/expert-worker/batcher.h"

// Calls without a transport, for tests of this folder.
namespace atelier::testing {

class FakeContext final : public CallContext {
 public:
  bool Cancelled() const override { return cancelled; }
  std::atomic<bool> cancelled{false};
};

// The memory behind a request.
struct CallData {
  std::vector<BFloat16> rows;
  std::vector<int32_t> expert_ids;
  std::vector<float> weights;
};

struct CallSpec {
  uint64_t id = 1;
  int layer = 1;
  int num_tokens = 1;
  int hidden = 2;
  int top_k = 2;
  CallPriority priority = CallPriority::kDecode;
};

// Row r holds id + r in every column, expert ids count up from id, weights are 0.5.
inline ForwardRequest MakeRequest(const CallSpec& spec) {
  auto data = std::make_shared<CallData>();
  for (int row = 0; row < spec.num_tokens; ++row) {
    data->rows.insert(data->rows.end(), static_cast<size_t>(spec.hidden),
                      ToBFloat16(static_cast<float>(spec.id) + static_cast<float>(row)));
  }
  const int routes = spec.num_tokens * spec.top_k;
  for (int i = 0; i < routes; ++i) data->expert_ids.push_back(i % 4);
  data->weights.assign(static_cast<size_t>(routes), 0.5f);
  ForwardRequest request;
  request.id = spec.id;
  request.layer = spec.layer;
  request.priority = spec.priority;
  request.batch = {spec.num_tokens, spec.hidden, data->rows.data()};
  request.routing = {spec.num_tokens, spec.top_k, data->expert_ids.data(), data->weights.data()};
  request.owner = std::move(data);
  return request;
}

}  // namespace atelier::testing
