#include "bench/support/ffn_result.h"

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "libs/numa/cpu_name.h"
#include "nlohmann/json.hpp"

namespace atelier {
namespace {

using Json = nlohmann::ordered_json;

Json MachineJson(const std::vector<MachineLimits>& all) {
  Json limits = Json::array();
  for (const MachineLimits& one : all) {
    Json peaks = Json::array();
    for (const IsaPeak& peak : one.peaks) {
      peaks.push_back(
          {{"isa", peak.isa}, {"int8_gop_per_s", peak.int8}, {"bf16_gop_per_s", peak.bf16}});
    }
    limits.push_back({{"threads", one.threads},
                      {"read_gb_per_s", one.read_gb_per_s},
                      {"int8_gop_per_s", one.Peak("best", Arithmetic::kInt8)},
                      {"bf16_gop_per_s", one.Peak("best", Arithmetic::kBf16)},
                      {"peaks", peaks}});
  }
  return {{"cpu", CpuName()}, {"limits", limits}};
}

const MachineLimits& LimitsFor(const std::vector<MachineLimits>& all, int threads) {
  return *std::find_if(all.begin(), all.end(),
                       [threads](const MachineLimits& one) { return one.threads == threads; });
}

Json ResultJson(const FfnResult& result, const MachineLimits& limits) {
  const LimitFraction limit = FractionOf(result, limits);
  return {{"method", result.method},
          {"isa", result.isa},
          {"threads", result.threads},
          {"shape", result.shape},
          {"rows", result.rows},
          {"routing", result.routing},
          {"us", result.us},
          {"gb_per_s", result.gb_per_s()},
          {"gop_per_s", result.gop_per_s()},
          {"limit", limit.bandwidth ? "bandwidth" : "compute"},
          {"fraction_of_limit", limit.fraction}};
}

}  // namespace

LimitFraction FractionOf(const FfnResult& result, const MachineLimits& limits) {
  const double read_us = result.bytes / limits.read_gb_per_s * 1e-3;
  const double compute_us = result.ops / limits.Peak(result.isa, result.arithmetic) * 1e-3;
  const double limit_us = std::max(read_us, compute_us);
  return {read_us >= compute_us, limit_us / result.us, limit_us / result.least_us};
}

void PrintLimits(const MachineLimits& limits) {
  std::printf("limits of %d thread(s): read %.1f GB/s\n", limits.threads, limits.read_gb_per_s);
  for (const IsaPeak& peak : limits.peaks) {
    std::printf("  %-12s", peak.isa.c_str());
    if (peak.int8 > 0) std::printf(" int8 %7.1f GOP/s", peak.int8);
    if (peak.bf16 > 0) std::printf(" bf16 %7.1f GOP/s", peak.bf16);
    std::printf("\n");
  }
}

void PrintHeading(const std::string& shape) {
  std::printf("\n%s\n%-12s %-12s %3s %5s %-9s %11s %11s %7s %8s %-9s %s %s\n", shape.c_str(),
              "method", "isa", "thr", "rows", "routing", "us", "best", "GB/s", "GOP/s", "limit",
              "of limit", "(best)");
}

void PrintResult(const FfnResult& result, const MachineLimits& limits) {
  const LimitFraction limit = FractionOf(result, limits);
  std::printf("%-12s %-12s %3d %5d %-9s %11.1f %11.1f %7.2f %8.1f %-9s %6.1f %% %6.1f %%\n",
              result.method.c_str(), result.isa.c_str(), result.threads, result.rows,
              result.routing.c_str(), result.us, result.least_us, result.gb_per_s(),
              result.gop_per_s(), limit.bandwidth ? "bandwidth" : "compute", 100 * limit.fraction,
              100 * limit.best);
  std::fflush(stdout);
}

absl::Status WriteJson(const std::string& path, const std::vector<MachineLimits>& limits,
                       const std::vector<FfnResult>& results) {
  Json all = Json::array();
  for (const FfnResult& result : results) {
    all.push_back(ResultJson(result, LimitsFor(limits, result.threads)));
  }
  std::ofstream file(path);
  file << Json{{"machine", MachineJson(limits)}, {"results", all}}.dump(1) << "\n";
  file.close();
  if (file.good()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("--json=", path, ": cannot write this file"));
}

}  // namespace atelier
