#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "services/gpu-frontend/experts/remote_experts.h"
#include "services/gpu-frontend/graph/layer_context.h"
#include "services/gpu-frontend/graph/weights.h"

namespace atelier {

// Histograms of the stages of a step, looked up once.
struct StageHistograms {
  explicit StageHistograms(FrontendMetrics& metrics);
  prometheus::Histogram& attention;
  prometheus::Histogram& router;
  prometheus::Histogram& workers;
  prometheus::Histogram& shared;
  prometheus::Histogram& dense;
  prometheus::Histogram& head;
};

// A layer's mixture of experts. One object serves all layers; used by the engine's thread.
class MoeBlock {
 public:
  // References outlive the block.
  MoeBlock(Device& device, RemoteExperts& experts, Clock& clock, const StageHistograms& stages)
      : experts_(experts), clock_(clock), stages_(stages), routed_(device.CreateEvent()) {}

  // residual += routed experts + shared expert of norm(residual). The routed experts run elsewhere
  // while the device computes the shared one and the routed ones that it has. Blocks until the
  // routed sums are there; their error otherwise, and then the residual is void.
  absl::Status Run(const LayerContext& context, int layer, const LayerWeights& weights);

 private:
  // Rows of one expert of the device, in the workspace's h_device_indices and h_device_weights.
  struct ExpertRows {
    size_t expert = 0;
    size_t begin = 0;
    int count = 0;
  };

  void QueueRouter(const LayerContext& context, const LayerWeights& weights);
  // Takes the choices of the device's experts out of the routing on the host; ascending experts.
  static std::vector<ExpertRows> TakeDeviceRows(const LayerContext& context,
                                                const LayerWeights& weights);
  // block_out += what they make of their rows, of each by its weight.
  static void QueueDeviceExperts(const LayerContext& context, const LayerWeights& weights,
                                 const std::vector<ExpertRows>& rows);
  absl::StatusOr<std::unique_ptr<ExpertsInFlight>> Begin(const LayerContext& context, int layer);

  RemoteExperts& experts_;
  Clock& clock_;
  const StageHistograms& stages_;
  std::unique_ptr<DeviceEvent> routed_;  // rows, ids and weights have reached the host
};

}  // namespace atelier
