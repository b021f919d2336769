#pragma once

#include <functional>
#include <vector>

namespace atelier {

// How long to repeat a measurement: until both are reached.
struct Effort {
  int min_calls = 5;
  double min_seconds = 0.3;
};

// Seconds of each call of body(call index), after one call that is not counted.
std::vector<double> TimeCalls(const Effort& effort, const std::function<void(int)>& body);

// REQUIRES: not empty.
double Median(std::vector<double> values);
double Least(const std::vector<double>& values);

}  // namespace atelier
