#include "libs/testing/reference_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/base/check.h"
#include "libs/base/float16.h"
#include "libs/checkpoint/expert_biases.h"
#include "libs/checkpoint/float_element.h"
#include "libs/checkpoint/tensor_list.h"
#include "libs/model/reference.h"

namespace atelier::testing {
namespace {

using Vector = std::vector<float>;
using Rows = std::vector<Vector>;  // one per token

Vector Floats(const TensorView& tensor) {
  Vector values(tensor.data.size() / DTypeBytes(tensor.dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = FloatElement(tensor.dtype, tensor.data.data(), i);
  }
  return values;
}

// What the router compares and what it weights with, of one token.
struct RouterValues {
  std::vector<double> scores;
  std::vector<double> choices;
};

RouterValues Values(const MoeConfig& moe, const Vector& logits, absl::Span<const float> bias) {
  RouterValues values;
  double total = 0;
  const double max = *std::max_element(logits.begin(), logits.end());
  const bool sigmoid = moe.scoring == RouterScoring::kSigmoid;
  for (size_t e = 0; e < logits.size(); ++e) {
    const double score =
        sigmoid ? 1 / (1 + std::exp(-double{logits[e]})) : std::exp(logits[e] - max);
    values.scores.push_back(score);
    values.choices.push_back((sigmoid ? score : double{logits[e]}) +
                             (bias.empty() ? 0.0 : double{bias[e]}));
    total += score;
  }
  if (sigmoid) return values;
  for (double& score : values.scores) score /= total;
  return values;
}

reference::RouterChoice WeightsOf(const MoeConfig& moe, const RouterValues& values,
                                  absl::Span<const int32_t> ids) {
  double total = moe.normalize_epsilon;
  for (int32_t id : ids) total += values.scores[static_cast<size_t>(id)];
  const double divisor = moe.normalize_weights ? total : 1.0;
  reference::RouterChoice choice;
  for (int32_t id : ids) {
    const double score = values.scores[static_cast<size_t>(id)];
    choice.experts.push_back(id);
    choice.weights.push_back(static_cast<float>(score / divisor * moe.routed_scaling_factor));
  }
  return choice;
}

double Worst(const RouterValues& values, absl::Span<const int32_t> ids) {
  double worst = std::numeric_limits<double>::infinity();
  for (int32_t id : ids) worst = std::min(worst, values.choices[static_cast<size_t>(id)]);
  return worst;
}

class Model {
 public:
  Model(const Checkpoint& checkpoint, ChosenExperts chosen)
      : checkpoint_(checkpoint), config_(checkpoint.config()), chosen_(std::move(chosen)) {}

  double worst_choice() const { return worst_choice_; }

  Vector Logits(absl::Span<const int32_t> tokens) {
    const size_t hidden = static_cast<size_t>(config_.hidden_size);
    const Vector& embedding = Load("model.embed_tokens.weight");
    Rows x;
    for (int32_t token : tokens) {
      const auto begin =
          embedding.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(token) * hidden);
      x.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(hidden));
    }
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      Add(x, Attend(layer, Normed(x, absl::StrCat(LayerPrefix(layer), "input_layernorm.weight"))));
      Add(x, FeedForward(layer, Normed(x, absl::StrCat(LayerPrefix(layer),
                                                       "post_attention_layernorm.weight"))));
    }
    const Vector& head = config_.tie_word_embeddings ? embedding : Load("lm_head.weight");
    Vector logits;
    for (const Vector& row : Normed(x, "model.norm.weight")) {
      const Vector of_row = reference::MatVec(head, row);
      logits.insert(logits.end(), of_row.begin(), of_row.end());
    }
    return logits;
  }

 private:
  // Every tensor is read for every token: its floats are kept, by where its bytes are.
  const Vector& Kept(const TensorView& tensor) {
    const auto [entry, is_new] = floats_.try_emplace(tensor.data.data());
    if (is_new) entry->second = Floats(tensor);
    return entry->second;
  }
  const Vector& Load(const std::string& name) {
    const auto tensor = checkpoint_.Find(name);
    ATELIER_CHECK(tensor.ok());
    return Kept(*tensor);
  }
  absl::Span<const float> LoadIf(bool wanted, const std::string& name) {
    return wanted ? absl::MakeConstSpan(Load(name)) : absl::Span<const float>();
  }

  Rows Normed(const Rows& x, const std::string& weight_name) {
    const Vector& weight = Load(weight_name);
    Rows normed;
    for (const Vector& row : x)
      normed.push_back(reference::RmsNorm(row, weight, config_.rms_norm_eps));
    return normed;
  }

  static void Add(Rows& x, const Rows& y) {
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t j = 0; j < x[t].size(); ++j) x[t][j] += y[t][j];
    }
  }

  // One of q, k, v for all tokens: projection, optional norm per head, optional rotation. [T *
  // heads * head_dim]
  Vector Project(const std::string& prefix, const Rows& x, bool normed, bool rotated) {
    const AttentionConfig& shape = config_.attention;
    const Vector& weight = Load(absl::StrCat(prefix, "_proj.weight"));
    const absl::Span<const float> bias = LoadIf(shape.qkv_bias, absl::StrCat(prefix, "_proj.bias"));
    const absl::Span<const float> norm =
        LoadIf(normed && shape.qk_norm != QkNorm::kNone, absl::StrCat(prefix, "_norm.weight"));
    const size_t head_dim = static_cast<size_t>(shape.head_dim);
    Vector all;
    for (size_t t = 0; t < x.size(); ++t) {
      Vector row = reference::MatVec(weight, x[t], bias);
      for (size_t begin = 0; begin < row.size() && !norm.empty(); begin += norm.size()) {
        const absl::Span<float> part(&row[begin], norm.size());
        const Vector value = reference::RmsNorm(part, norm, config_.rms_norm_eps);
        std::copy(value.begin(), value.end(), part.begin());
      }
      for (size_t begin = 0; begin < row.size() && rotated; begin += head_dim) {
        const absl::Span<float> head(&row[begin], head_dim);
        reference::ApplyRope(head, shape.rotary_dim, shape.rope_theta, static_cast<int64_t>(t),
                             shape.interleaved_rope);
      }
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }

  Rows Attend(int layer, const Rows& x) {
    const std::string prefix = absl::StrCat(LayerPrefix(layer), "self_attn.");
    const Vector q = Project(absl::StrCat(prefix, "q"), x, true, true);
    const Vector k = Project(absl::StrCat(prefix, "k"), x, true, true);
    const Vector v = Project(absl::StrCat(prefix, "v"), x, false, false);
    const Vector attended = reference::Attention(config_.attention, q, k, v);
    const Vector& weight = Load(absl::StrCat(prefix, "o_proj.weight"));
    const absl::Span<const float> bias =
        LoadIf(config_.attention.output_bias, absl::StrCat(prefix, "o_proj.bias"));
    const size_t width = attended.size() / x.size();
    Rows out;
    for (size_t t = 0; t < x.size(); ++t) {
      out.push_back(
          reference::MatVec(weight, absl::MakeConstSpan(attended).subspan(t * width, width), bias));
    }
    return out;
  }

  Vector Ffn(const std::string& prefix, const Vector& x) {
    const Vector& gate = Load(absl::StrCat(prefix, "gate_proj.weight"));
    const Vector& up = Load(absl::StrCat(prefix, "up_proj.weight"));
    const Vector& down = Load(absl::StrCat(prefix, "down_proj.weight"));
    return reference::SwiGluFfn({gate, up, down}, x);
  }

  // What the shared expert's result is multiplied by.
  float SharedFactor(const std::string& prefix, const Vector& x) {
    if (!config_.moe.shared_gate) return 1.0f;
    const Vector& gate = Load(absl::StrCat(prefix, "shared_expert_gate.weight"));
    return static_cast<float>(1.0 / (1.0 + std::exp(-double{reference::MatVec(gate, x)[0]})));
  }

  Vector Routed(int layer, const Vector& x, const reference::RouterChoice& choice) {
    Vector sum(x.size());
    for (size_t i = 0; i < choice.experts.size(); ++i) {
      const auto tensors = FindExpert(checkpoint_, layer, choice.experts[i]);
      ATELIER_CHECK(tensors.ok());
      const auto biases = FindExpertBiases(checkpoint_, layer, choice.experts[i]);
      ATELIER_CHECK(biases.ok());
      const Vector y = reference::ExpertFfn(
          {{Kept(tensors->gate.tensor), Kept(tensors->up.tensor), Kept(tensors->down.tensor)},
           config_.moe.activation,
           biases->gate,
           biases->up,
           biases->down},
          x);
      for (size_t j = 0; j < sum.size(); ++j) sum[j] += choice.weights[i] * y[j];
    }
    return sum;
  }

  reference::RouterChoice Choose(int layer, size_t token, const Vector& logits,
                                 absl::Span<const float> bias) {
    const reference::RouterChoice own = reference::Route(config_.moe, logits, bias);
    if (!chosen_) return own;
    const RouterValues values = Values(config_.moe, logits, bias);
    const absl::Span<const int32_t> ids = chosen_(layer, token);
    const auto [low, high] = std::minmax_element(values.choices.begin(), values.choices.end());
    worst_choice_ =
        std::max(worst_choice_, (Worst(values, own.experts) - Worst(values, ids)) / (*high - *low));
    return WeightsOf(config_.moe, values, ids);
  }

  Rows FeedForward(int layer, const Rows& x) {
    const std::string prefix = absl::StrCat(LayerPrefix(layer), "mlp.");
    Rows out;
    if (!config_.is_moe_layer[static_cast<size_t>(layer)]) {
      for (const Vector& row : x) out.push_back(Ffn(prefix, row));
      return out;
    }
    const Vector& router = Load(absl::StrCat(prefix, "gate.weight"));
    const absl::Span<const float> bias =
        LoadIf(config_.moe.correction_bias, absl::StrCat(prefix, "gate.e_score_correction_bias"));
    for (size_t t = 0; t < x.size(); ++t) {
      const Vector& row = x[t];
      Vector y = Routed(layer, row, Choose(layer, t, reference::MatVec(router, row), bias));
      if (config_.moe.shared_intermediate_size > 0) {
        const Vector shared = Ffn(absl::StrCat(prefix, "shared_experts."), row);
        const float factor = SharedFactor(prefix, row);
        for (size_t j = 0; j < y.size(); ++j) y[j] += factor * shared[j];
      }
      out.push_back(std::move(y));
    }
    return out;
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  ChosenExperts chosen_;
  std::map<const uint8_t*, Vector> floats_;
  double worst_choice_ = 0;
};

}  // namespace

std::vector<float> ReferenceLogits(const Checkpoint& checkpoint, absl::Span<const int32_t> tokens) {
  return Model(checkpoint, nullptr).Logits(tokens);
}

ForcedLogits ReferenceLogitsForChoices(const Checkpoint& checkpoint,
                                       absl::Span<const int32_t> tokens,
                                       const ChosenExperts& chosen) {
  Model model(checkpoint, chosen);
  ForcedLogits result;
  result.logits = model.Logits(tokens);
  result.worst_choice = model.worst_choice();
  return result;
}

}  // namespace atelier::testing
