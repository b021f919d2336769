#pragma once

#include "libs/base/clock.h"
#include "libs/device/device.h"
#include "libs/metrics/metrics.h"
#include "libs/model/model_config.h"
#include "services/gpu-frontend/graph/step_batch.h"
#include "services/gpu-frontend/graph/workspace.h"

namespace atelier {

// What every layer kind works with during one step; borrowed.
struct LayerContext {
  const ModelConfig& config;
  DeviceStream& stream;
  Workspace& space;
  const StepBatch& batch;
};

// Observes the host time from its construction to its end in a stage's histogram. On a device that
// runs behind the host this is the time to queue the work, except for stages that wait (router,
// workers, head).
class StageTimer {
 public:
  StageTimer(prometheus::Histogram& histogram, Clock& clock)
      : histogram_(histogram), clock_(clock), start_(clock.Now()) {}
  ~StageTimer() { histogram_.Observe(absl::ToDoubleSeconds(clock_.Now() - start_)); }
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;

 private:
  prometheus::Histogram& histogram_;
  Clock& clock_;
  absl::Time start_;
};

}  // namespace atelier
