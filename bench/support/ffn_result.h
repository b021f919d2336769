#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/support/machine.h"

namespace atelier {

// One measured cell.
struct FfnResult {
  std::string method;
  std::string isa;
  int threads = 0;
  std::string shape;
  int rows = 0;  // tokens in the batch
  std::string routing;
  double us = 0;  // median
  double least_us = 0;
  double bytes = 0;  // packed weights touched
  double ops = 0;    // 2 per multiply-add
  Arithmetic arithmetic = Arithmetic::kInt8;

  double gb_per_s() const { return bytes / us * 1e-3; }
  double gop_per_s() const { return ops / us * 1e-3; }
};

// Which limit binds, and how close to it a result came.
struct LimitFraction {
  bool bandwidth = false;  // else compute
  double fraction = 0;     // of the median
  double best = 0;         // of the least time: what noise on the machine took is the difference
};
LimitFraction FractionOf(const FfnResult& result, const MachineLimits& limits);

void PrintLimits(const MachineLimits& limits);
void PrintHeading(const std::string& shape);
void PrintResult(const FfnResult& result, const MachineLimits& limits);

// UNAVAILABLE naming the file that cannot be written. `limits`: one per thread count.
absl::Status WriteJson(const std::string& path, const std::vector<MachineLimits>& limits,
                       const std::vector<FfnResult>& results);

}  // namespace atelier
