#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/support/routed_batch.h"
#include "bench/support/synthetic_experts.h"
#include "libs/base/flag_table.h"
#include "libs/model/dtype.h"

namespace atelier {

// What `expert_ffn` measures, as typed. Empty lists = the default set of the mode.
struct FfnOptions {
  bool quick = false;
  bool kernel_only = false;
  std::string json;
  std::vector<std::string> methods, isas, rows, shapes, routings, threads;
  int64_t memory_bytes = 0;  // 0 = a third of what is available, at most kMostWeightBytes

  // INVALID_ARGUMENT naming flag and value.
  absl::Status Validate() const;
};

inline constexpr int64_t kMostWeightBytes = int64_t{4} << 30;

// The cells to measure, resolved.
struct FfnPlan {
  std::vector<Method> methods;
  std::vector<std::string> isas;  // empty = every one of the table but scalar, and "best"
  std::vector<int> rows;
  std::vector<LayerShape> shapes;
  std::vector<RoutingKind> routings;
  std::vector<int> threads;
};

// REQUIRES: options.Validate() is OK.
FfnPlan MakePlan(const FfnOptions& options, int max_threads);

FlagTable FfnFlags(FfnOptions* options);

}  // namespace atelier
