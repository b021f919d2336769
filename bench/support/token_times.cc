#include "bench/support/token_times.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <map>

namespace atelier {
namespace {

struct Span {
  double before = 0;  // its last token before the window; 0 = none
  double last = 0;
  int64_t tokens = 0;
};

}  // namespace

double SteadyNow() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double TokenRate(const std::vector<TokenArrival>& arrivals, double begin, double end) {
  std::map<int, Span> spans;
  for (const TokenArrival& arrival : arrivals) {
    Span& span = spans[arrival.stream];
    if (arrival.time < begin) {
      span.before = arrival.time;
    } else if (arrival.time < end) {
      span.last = arrival.time;
      ++span.tokens;
    }
  }
  double rate = 0;
  for (const auto& [stream, span] : spans) {
    // One that began within the window counts from the window's begin.
    const double from = span.before > 0 ? span.before : begin;
    if (span.tokens > 0) rate += static_cast<double>(span.tokens) / (span.last - from);
  }
  return rate;
}

std::vector<double> GapsBetween(const std::vector<TokenArrival>& arrivals, double begin,
                                double end) {
  std::vector<double> gaps;
  for (const TokenArrival& arrival : arrivals) {
    if (arrival.gap > 0 && arrival.time >= begin && arrival.time < end) gaps.push_back(arrival.gap);
  }
  return gaps;
}

std::optional<TokenArrival> LongestGap(const std::vector<TokenArrival>& arrivals, double begin,
                                       double end) {
  std::optional<TokenArrival> longest;
  for (const TokenArrival& arrival : arrivals) {
    if (arrival.time < begin || arrival.time >= end || arrival.gap <= 0) continue;
    if (!longest.has_value() || arrival.gap > longest->gap) longest = arrival;
  }
  return longest;
}

std::optional<double> FirstTokenAfter(const std::vector<TokenArrival>& arrivals, double begin) {
  std::optional<double> first;
  for (const TokenArrival& arrival : arrivals) {
    if (arrival.time < begin) continue;
    first = std::min(first.value_or(arrival.time - begin), arrival.time - begin);
  }
  return first;
}

std::optional<double> TimeUntilRate(const std::vector<TokenArrival>& arrivals, double begin,
                                    double end, double rate, double span) {
  std::vector<double> times;
  for (const TokenArrival& arrival : arrivals) {
    if (arrival.time >= begin && arrival.time + span <= end) times.push_back(arrival.time);
  }
  std::sort(times.begin(), times.end());
  for (const double time : times) {
    // From right behind it: the wait that it ends is not of that rate.
    const double from = std::nextafter(time, end);
    if (TokenRate(arrivals, from, time + span) >= rate) return time - begin;
  }
  return std::nullopt;
}

}  // namespace atelier
