#pragma once

#include <optional>
#include <vector>

namespace atelier {

// A token as its client got it. Seconds of the steady clock.
struct TokenArrival {
  double time = 0;
  int stream = 0;
  double gap = 0;  // since the token before it of the same answer; 0 = the answer's first
};

// Seconds of the steady clock.
double SteadyNow();

// Arrivals are by stream in order of time in all of these.

// Tokens per second of all streams together between two times: of each stream from its last token
// before `begin` to its last before `end`, so that a window does not cut tokens in two. A stream
// with no token in the window counts as 0.
double TokenRate(const std::vector<TokenArrival>& arrivals, double begin, double end);

// Gaps of tokens that came between the two times.
std::vector<double> GapsBetween(const std::vector<TokenArrival>& arrivals, double begin,
                                double end);

// The token of those between the two times that came after the longest gap; nullopt = none has one.
std::optional<TokenArrival> LongestGap(const std::vector<TokenArrival>& arrivals, double begin,
                                       double end);

// Seconds from `begin` to the first token of any stream after it; nullopt = none came.
std::optional<double> FirstTokenAfter(const std::vector<TokenArrival>& arrivals, double begin);

// Seconds from `begin` until tokens come at `rate`: to the first token that is followed by `span`
// seconds of at least that rate. nullopt = not before `end`.
std::optional<double> TimeUntilRate(const std::vector<TokenArrival>& arrivals, double begin,
                                    double end, double rate, double span);

}  // namespace atelier
