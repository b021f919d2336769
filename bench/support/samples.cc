#include "bench/support/samples.h"

#include <algorithm>
#include <chrono>

namespace atelier {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

std::vector<double> TimeCalls(const Effort& effort, const std::function<void(int)>& body) {
  body(0);
  std::vector<double> seconds;
  const double begin = Now();
  for (double start = begin;
       static_cast<int>(seconds.size()) < effort.min_calls || start < begin + effort.min_seconds;) {
    body(static_cast<int>(seconds.size()) + 1);
    const double end = Now();
    seconds.push_back(end - start);
    start = end;
  }
  return seconds;
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double Least(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

}  // namespace atelier
