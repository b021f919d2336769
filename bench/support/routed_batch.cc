#include "bench/support/routed_batch.h"

#include <algorithm>
#include <numeric>
#include <random>

namespace atelier {
namespace {

using Generator = std::mt19937;

std::vector<int32_t> Shuffled(int count, Generator& generator) {
  std::vector<int32_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), generator);
  return order;
}

// A deck may end within a token: then the token takes the next deck's first cards that it does not
// hold yet.
std::vector<int32_t> Deal(const LayerShape& shape, int num_tokens, Generator& generator) {
  std::vector<int32_t> ids, deck;
  for (int token = 0; token < num_tokens; ++token) {
    const auto first = static_cast<std::ptrdiff_t>(ids.size());
    for (int i = 0; i < shape.top_k; ++i) {
      if (deck.empty()) deck = Shuffled(shape.num_experts, generator);
      const auto held = [&](int32_t id) {
        return std::find(ids.begin() + first, ids.end(), id) != ids.end();
      };
      const auto card = std::find_if_not(deck.rbegin(), deck.rend(), held);
      ids.push_back(*card);
      deck.erase(std::next(card).base());
    }
  }
  return ids;
}

std::vector<int32_t> DrawByZipf(const LayerShape& shape, int num_tokens, Generator& generator) {
  const std::vector<int32_t> by_rank = Shuffled(shape.num_experts, generator);
  std::vector<double> chances(by_rank.size());
  std::vector<int32_t> ids;
  for (int token = 0; token < num_tokens; ++token) {
    for (size_t rank = 0; rank < chances.size(); ++rank) {
      chances[rank] = 1.0 / static_cast<double>(rank + 1);
    }
    for (int i = 0; i < shape.top_k; ++i) {
      std::discrete_distribution<size_t> draw(chances.begin(), chances.end());
      const size_t rank = draw(generator);
      chances[rank] = 0;
      ids.push_back(by_rank[rank]);
    }
  }
  return ids;
}

}  // namespace

absl::string_view RoutingName(RoutingKind kind) {
  return kind == RoutingKind::kBalanced ? "balanced" : "skewed";
}

RoutedBatch::RoutedBatch(const LayerShape& shape, int num_tokens, RoutingKind kind, uint32_t seed)
    : num_tokens_(num_tokens), hidden_(shape.hidden), top_k_(shape.top_k) {
  Generator generator(seed);
  expert_ids_ = kind == RoutingKind::kBalanced ? Deal(shape, num_tokens, generator)
                                               : DrawByZipf(shape, num_tokens, generator);
  weights_.assign(expert_ids_.size(), 1.0f / static_cast<float>(shape.top_k));
  rows_.resize(static_cast<size_t>(num_tokens) * static_cast<size_t>(shape.hidden));
  for (BFloat16& value : rows_) {
    value = ToBFloat16(static_cast<float>(generator() % 2001) / 1000.0f - 1.0f);
  }
  std::vector<int32_t> distinct = expert_ids_;
  std::sort(distinct.begin(), distinct.end());
  num_activated_ =
      static_cast<int>(std::unique(distinct.begin(), distinct.end()) - distinct.begin());
}

LayerBatch RoutedBatch::View(int layer) const {
  LayerBatch batch;
  batch.layer = layer;
  batch.tokens = {num_tokens_, hidden_, rows_.data()};
  batch.routing = {num_tokens_, top_k_, expert_ids_.data(), weights_.data()};
  return batch;
}

}  // namespace atelier
