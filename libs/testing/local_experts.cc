#include "libs/testing/local_experts.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "libs/base/status_macros.h"
#include "libs/checkpoint/expert_biases.h"
#include "libs/kernels/aligned_buffer.h"
#include "libs/kernels/block_pack.h"
#include "libs/kernels/expert_ffn.h"

namespace atelier::testing {
namespace {

// One expert of one shard with the memory of its matrices.
struct PackedExpert {
  AlignedBuffer<uint8_t> gate, up, down;
  ExpertBiases biases;  // of the slice, padded to a panel
  ExpertView view;
};

std::vector<float> PaddedPart(const std::vector<float>& bias, IntermediateRange part) {
  std::vector<float> padded(bias.begin() + part.begin, bias.begin() + part.end);
  padded.resize((padded.size() + kPanelWidth - 1) / kPanelWidth * kPanelWidth, 0.0f);
  return padded;
}

// down's bias belongs to the first slice.
void SetBiases(const ExpertBiases& whole, int hidden, IntermediateRange slice,
               PackedExpert& expert) {
  if (whole.gate.empty()) return;
  expert.biases.gate = PaddedPart(whole.gate, slice);
  expert.biases.up = PaddedPart(whole.up, slice);
  expert.view.gate_bias = expert.biases.gate.data();
  expert.view.up_bias = expert.biases.up.data();
  if (slice.begin > 0) return;
  expert.biases.down = PaddedPart(whole.down, {0, hidden});
  expert.view.down_bias = expert.biases.down.data();
}

// The part of `matrix` that starts at (row, column), packed as [n, k].
PackedMatrix Pack(const PublishedMatrix& matrix, Method requested, int row, int column, int n,
                  int k, AlignedBuffer<uint8_t>& to) {
  const Method method = matrix.quant ? matrix.quant->method : requested;
  uint8_t* block = to.Reserve(PackedMatrixBytes(method, n, k));
  if (matrix.quant) {
    PackedMatrix packed = PackedMatrixAt(method, n, k, block);
    packed.bf16_scales = matrix.quant->bf16_scales;
    PackQuantMatrix(QuantSlice(*matrix.quant->source, row, column), method, n, k, 0,
                    packed.num_panels(), block);
    return packed;
  }
  const TensorView& tensor = matrix.tensor;
  const size_t stride = static_cast<size_t>(tensor.shape[1]);
  const size_t first = static_cast<size_t>(row) * stride + static_cast<size_t>(column);
  const WeightSource source{tensor.dtype, tensor.data.data() + first * DTypeBytes(tensor.dtype),
                            stride};
  const PackedMatrix packed = PackedMatrixAt(method, n, k, block);
  PackMatrix(source, method, n, k, 0, packed.num_panels(), block);
  return packed;
}

PackedExpert PackExpert(const ExpertTensors& tensors, Method method, int hidden,
                        IntermediateRange slice) {
  PackedExpert expert;
  expert.view.gate = Pack(tensors.gate, method, slice.begin, 0, slice.size(), hidden, expert.gate);
  expert.view.up = Pack(tensors.up, method, slice.begin, 0, slice.size(), hidden, expert.up);
  expert.view.down = Pack(tensors.down, method, 0, slice.begin, hidden, slice.size(), expert.down);
  return expert;
}

struct LayerShard {
  std::map<int, PackedExpert> experts;  // ascending id
};

class Finished final : public ExpertsInFlight {
 public:
  Finished(absl::Status status, std::vector<float> sums)
      : status_(std::move(status)), sums_(std::move(sums)) {}
  absl::Status Wait(float* out) override {
    if (status_.ok()) std::copy(sums_.begin(), sums_.end(), out);
    return status_;
  }

 private:
  absl::Status status_;
  std::vector<float> sums_;
};

class KernelExperts final : public LocalExperts {
 public:
  KernelExperts(const KernelTable& kernels, std::map<int, std::vector<LayerShard>> layers)
      : kernels_(kernels), layers_(std::move(layers)) {}

  const std::vector<int32_t>& RoutedIds(int layer) const override { return routed_ids_.at(layer); }
  void FailLayer(int layer, absl::Status status) override { failures_[layer] = std::move(status); }

  absl::StatusOr<std::unique_ptr<ExpertsInFlight>> Begin(int layer, const TokenBatch& batch,
                                                         const Routing& routing, bool) override {
    std::vector<int32_t>& seen = routed_ids_[layer];
    seen.insert(seen.end(), routing.expert_ids,
                routing.expert_ids + routing.num_tokens * routing.top_k);
    std::vector<float> sums(static_cast<size_t>(batch.num_tokens) *
                            static_cast<size_t>(batch.hidden_size));
    for (const LayerShard& shard : layers_.at(layer)) {
      std::vector<float> partial(sums.size());
      for (const auto& [id, expert] : shard.experts) AddExpert(expert, id, batch, routing, partial);
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += partial[i];
    }
    return std::make_unique<Finished>(failures_[layer], std::move(sums));
  }

 private:
  void AddExpert(const PackedExpert& expert, int id, const TokenBatch& batch,
                 const Routing& routing, std::vector<float>& partial) const {
    std::vector<std::pair<int, float>> chosen;  // (token, weight)
    for (int i = 0; i < routing.num_tokens * routing.top_k; ++i) {
      if (routing.expert_ids[i] == id) chosen.emplace_back(i / routing.top_k, routing.weights[i]);
    }
    if (chosen.empty()) return;
    const size_t hidden = static_cast<size_t>(batch.hidden_size);
    const int rows = static_cast<int>(chosen.size());
    std::vector<BFloat16> gathered(chosen.size() * hidden);
    for (size_t r = 0; r < chosen.size(); ++r) {
      std::memcpy(&gathered[r * hidden], batch.rows + static_cast<size_t>(chosen[r].first) * hidden,
                  hidden * sizeof(BFloat16));
    }
    AlignedBuffer<uint8_t> data;
    std::vector<float> scales(chosen.size());
    const Method method = expert.view.gate.method;
    const size_t stride = ActivationRowBytes(method, batch.hidden_size);
    data.Reserve(stride * chosen.size());
    PrepareRows(method, gathered.data(), hidden, rows, batch.hidden_size, data.data(),
                scales.data());
    const size_t out_stride = static_cast<size_t>(expert.view.down.num_panels()) * kPanelWidth;
    std::vector<float> out(chosen.size() * out_stride);
    RunExpert(kernels_, expert.view, {data.data(), stride, scales.data(), rows}, out.data(),
              out_stride);
    for (size_t r = 0; r < chosen.size(); ++r) {
      float* to = &partial[static_cast<size_t>(chosen[r].first) * hidden];
      for (size_t j = 0; j < hidden; ++j) to[j] += chosen[r].second * out[r * out_stride + j];
    }
  }

  KernelTable kernels_;
  std::map<int, std::vector<LayerShard>> layers_;
  std::map<int, absl::Status> failures_;
  std::map<int, std::vector<int32_t>> routed_ids_;
};

absl::StatusOr<LayerShard> PackShard(const Checkpoint& checkpoint, int layer, const ShardSpec& spec,
                                     Method method) {
  const ModelConfig& config = checkpoint.config();
  ATELIER_ASSIGN_OR_RETURN(
      const IntermediateRange slice,
      SliceRange(config.moe.intermediate_size, spec.slice_index, spec.slice_count));
  LayerShard shard;
  for (int id = spec.expert_begin; id < spec.expert_end; ++id) {
    ATELIER_ASSIGN_OR_RETURN(const ExpertTensors tensors, FindExpert(checkpoint, layer, id));
    ATELIER_ASSIGN_OR_RETURN(const ExpertBiases biases, FindExpertBiases(checkpoint, layer, id));
    PackedExpert expert = PackExpert(tensors, method, config.hidden_size, slice);
    expert.view.activation = config.moe.activation;
    SetBiases(biases, config.hidden_size, slice, expert);
    shard.experts.emplace(id, std::move(expert));
  }
  return shard;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalExperts>> LocalExperts::Create(
    const Checkpoint& checkpoint, const LocalExpertsOptions& options) {
  ATELIER_ASSIGN_OR_RETURN(const KernelTable kernels,
                           KernelTable::Select(CpuFeatures::Detect(), options.cpu_isa));
  const ModelConfig& config = checkpoint.config();
  std::vector<ShardSpec> shards = options.shards;
  if (shards.empty()) shards.push_back({{}, 0, config.moe.num_experts, 0, 1});
  std::map<int, std::vector<LayerShard>> layers;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (!config.is_moe_layer[static_cast<size_t>(layer)]) continue;
    for (const ShardSpec& spec : shards) {
      ATELIER_ASSIGN_OR_RETURN(LayerShard shard,
                               PackShard(checkpoint, layer, spec, options.method));
      layers[layer].push_back(std::move(shard));
    }
  }
  return std::make_unique<KernelExperts>(kernels, std::move(layers));
}

}  // namespace atelier::testing
