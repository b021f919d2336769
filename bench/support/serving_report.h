#pragma once

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace atelier {

// What a run of `bench serving` finds: prints each figure, and each target of the design with
// whether it holds, as it comes; with a path also as a line of JSON, so that a run that is cut off
// leaves what it had.
class ServingReport {
 public:
  // `json_path` may be empty. Replaces what is there.
  explicit ServingReport(const std::string& json_path);

  // About run and machine, as texts by name.
  void AddFacts(const std::vector<std::pair<std::string, std::string>>& facts);

  struct Figure {
    std::string experiment;
    std::string variant;
    std::string metric;
    std::string unit;
    std::vector<double> rounds;  // one value each
  };
  // Prints median and range. REQUIRES: rounds is not empty.
  void Add(const Figure& figure);

  struct Target {
    std::string id;  // of the design's list, "T6"
    std::string what;
    double value = 0;
    double limit = 0;
    bool at_least = true;  // else at most
    std::string unit;
    bool Holds() const { return at_least ? value >= limit : value <= limit; }
  };
  void Add(const Target& target);

  // Something that was not measured, and why.
  void Skip(const std::string& what, const std::string& why);

  // UNAVAILABLE when something so far could not be written to the file.
  absl::Status Written() const;

 private:
  const std::string json_path_;
  std::ofstream json_;
};

// By round, a / b. REQUIRES: as many of both.
std::vector<double> Ratios(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace atelier
