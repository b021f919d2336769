#include "bench/support/serving_experiments.h"

#include <random>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "libs/base/status_macros.h"

namespace atelier {
namespace {

constexpr int kPromptTokens = 16;
constexpr uint32_t kAnswerTokens = 256;
constexpr size_t kRequests = 8;

}  // namespace

ServingClusterSpec ServingSetup::Named(const std::string& name) const {
  ServingClusterSpec named = cluster;
  named.name = name;
  return named;
}

std::vector<faults::StreamRequest> BenchRequests(const ServingSetup& setup) {
  std::mt19937 random(1);
  std::uniform_int_distribution<uint32_t> token(0, setup.vocab_size - 1);
  std::vector<faults::StreamRequest> requests(kRequests);
  for (faults::StreamRequest& request : requests) {
    for (int i = 0; i < kPromptTokens; ++i) request.prompt.push_back(token(random));
    request.max_new_tokens = kAnswerTokens;
    request.ignore_eos = true;
  }
  return requests;
}

absl::StatusOr<Speed> MeasureSpeed(const ServingSetup& setup,
                                   const std::vector<std::string>& frontends, int streams) {
  TokenLoad load({frontends, streams, BenchRequests(setup)});
  ATELIER_RETURN_IF_ERROR(load.AwaitDecoding());
  const double begin = SteadyNow();
  absl::SleepFor(absl::Seconds(setup.window));
  const double end = SteadyNow();
  if (const absl::Status failure = load.failure(); !failure.ok()) return failure;
  const std::vector<TokenArrival> arrivals = load.Arrivals();
  Speed speed{TokenRate(arrivals, begin, end), GapsBetween(arrivals, begin, end)};
  if (!speed.gaps.empty()) return speed;
  return absl::DeadlineExceededError(
      absl::StrCat("no two tokens within ", setup.window, " s from ", frontends[0]));
}

}  // namespace atelier
