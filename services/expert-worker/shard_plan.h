#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "libs/model/activation_form.h"
#include "libs/model/dtype.h"
#include "libs/model/model_config.h"
#include "libs/model/shard.h"

namespace atelier {

// How the three matrices of a layer's experts are kept; all experts of a layer alike.
struct ExpertMethods {
  Method gate = Method::kBF16;
  Method up = Method::kBF16;
  Method down = Method::kBF16;

  friend bool operator==(const ExpertMethods&, const ExpertMethods&) = default;
};

// By layer of the model; what stands at layers without experts means nothing.
using LayerMethods = std::vector<ExpertMethods>;
LayerMethods UniformMethods(const ModelConfig& config, Method method);
// Every method that experts of the model are kept in; as text, "BF16", "Q4_K+Q6_K".
std::set<Method> UsedMethods(const ModelConfig& config, const LayerMethods& methods);
std::string MethodNames(const ModelConfig& config, const LayerMethods& methods);

// The int8 form in which every expert of the model multiplies its rows with gate and up; kBf16 when
// there is none.
ActivationForm CommonInt8Form(const ModelConfig& config, const LayerMethods& methods);

// What one shard takes of a model, before anything is allocated.
struct ShardPlan {
  ShardSpec spec;             // layers filled in
  IntermediateRange columns;  // of the intermediate dimension
  int hidden_size = 0;
  int intermediate_size = 0;           // unsliced
  std::vector<ExpertMethods> methods;  // [layer of the shard]
  std::vector<int64_t> layer_bytes;    // [layer of the shard], packed

  int num_experts() const { return spec.expert_end - spec.expert_begin; }
  int64_t num_layers() const { return static_cast<int64_t>(spec.layers.size()); }
  int64_t bytes() const;
};

// Where the packed matrices of an expert lie in its block: gate, up and down, each a multiple of 64
// bytes.
struct ExpertBlock {
  size_t gate_bytes = 0;
  size_t up_bytes = 0;
  size_t down_bytes = 0;
  size_t bytes() const { return gate_bytes + up_bytes + down_bytes; }
};
// What a packed matrix takes there.
size_t BlockBytes(Method method, int n, int k);
ExpertBlock BlockOf(const ShardPlan& plan, const ExpertMethods& methods);

// INVALID_ARGUMENT naming what the model does not have: the layer, the experts, the slice, or a
// matrix that the kernels cannot take; and for two shards with weights in common.
absl::StatusOr<std::vector<ShardPlan>> PlanShards(const ModelConfig& config,
                                                  const std::vector<ShardSpec>& shards,
                                                  const LayerMethods& methods);

}  // namespace atelier
