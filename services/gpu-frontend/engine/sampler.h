#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "services/gpu-frontend/engine/counter_rng.h"
#include "services/gpu-frontend/engine/request.h"
#include "services/gpu-frontend/engine/token_history.h"

namespace atelier {

// Whether the sampler looks at the history.
bool HasPenalty(const SamplingOptions& options);

// Everything a token depends on.
struct SamplingInput {
  absl::Span<const float> logits;  // [vocab_size]
  const SamplingOptions& options;
  const TokenHistory& history;          // read only when a penalty is set
  absl::Span<const int32_t> forbidden;  // ids that may not be chosen now
  RandomKey random;                     // unused when greedy
};

// Chooses the next token: a pure function of its input, in this order:
//   1. logit_bias is added;
//   2. repetition_penalty r, on every token of prompt and output: l / r where l > 0, else l * r;
//   3. frequency_penalty times the occurrences in the output, and presence_penalty for each token
//      that occurs there, are subtracted;
//   4. forbidden ids (min_new_tokens) get no probability;
//   5. temperature 0: the largest logit, of equal ones the lowest id. Else logits / temperature;
//   6. top_k: the k most likely (of equal ones the lowest ids);
//   7. top_p: the fewest most likely of those whose share of their probability reaches top_p;
//   8. min_p: those at least min_p times as likely as the most likely one;
//   9. one draw from what is left, by its probabilities.
// A NaN counts as minus infinity. The object only holds scratch memory; not thread-safe.
class Sampler {
 public:
  // nullopt when no token has a probability above 0.
  std::optional<int32_t> Sample(const SamplingInput& input);

 private:
  struct Candidate {
    float logit;
    float weight;  // probability relative to the most likely token's
    int32_t token;
  };
  static bool Likelier(const Candidate& a, const Candidate& b);

  absl::Span<const float> Adjust(const SamplingInput& input);
  void Penalize(const SamplingInput& input);
  double Weigh(absl::Span<const float> logits, float largest, float temperature);
  int32_t DrawAmongTop(absl::Span<const float> logits, float largest, const SamplingOptions& o,
                       double u);
  void CollectTopK(absl::Span<const float> logits, size_t k);
  void CollectLikely(absl::Span<const float> logits, double floor);
  void KeepTopK(size_t k);
  void KeepTopP(double mass);

  std::vector<float> adjusted_;
  std::vector<float> weights_;  // parallel to the logits
  std::vector<Candidate> candidates_;
};

// log softmax of the model's own logits (before bias, penalties and temperature) for `token`, and
// for the `num_top` most likely tokens, most likely first. nullopt when no logit is usable.
std::optional<TokenLogprob> LogprobOf(int32_t token, int num_top, absl::Span<const float> logits);

}  // namespace atelier
