#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/support/far_link.h"
#include "bench/support/serving_cluster.h"
#include "bench/support/serving_report.h"
#include "bench/support/token_load.h"

namespace atelier {

// What every experiment is given. Outlives them.
struct ServingSetup {
  ServingClusterSpec cluster;
  int num_moe_layers = 0;
  uint32_t vocab_size = 0;
  double window = 2;             // seconds of one measurement
  int rounds = 5;                // variants take turns within each
  const FarLink* far = nullptr;  // null = there is none
  std::string no_far;            // why
  ServingReport& report;

  ServingClusterSpec Named(const std::string& name) const;
};

// The experiments. Errors are of what could not be run, a stream that was lost or an answer that
// differs; what was measured is in setup.report.
// Experts in the frontend's process against experts in a worker, by every way to it.
absl::Status MeasureWays(const ServingSetup& setup);
// The same streams spread over one, two and four frontends of one worker.
absl::Status MeasureFrontends(const ServingSetup& setup);
// One of two replicas is killed, and started again.
absl::Status MeasureLoss(const ServingSetup& setup);

// What experiments share: greedy answers of one length to prompts of random tokens.
std::vector<faults::StreamRequest> BenchRequests(const ServingSetup& setup);

struct Speed {
  double tokens_per_second = 0;
  std::vector<double> gaps;  // seconds between tokens
};
// Over setup.window, from when all streams decode.
absl::StatusOr<Speed> MeasureSpeed(const ServingSetup& setup,
                                   const std::vector<std::string>& frontends, int streams);

}  // namespace atelier
