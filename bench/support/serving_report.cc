#include "bench/support/serving_report.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "bench/support/samples.h"
#include "libs/base/check.h"
#include "nlohmann/json.hpp"

namespace atelier {
namespace {

void WriteLine(std::ofstream& file, const nlohmann::json& line) {
  if (file.is_open()) file << line.dump() << std::endl;
}

}  // namespace

ServingReport::ServingReport(const std::string& json_path) : json_path_(json_path) {
  if (!json_path_.empty()) json_.open(json_path_);
}

void ServingReport::AddFacts(const std::vector<std::pair<std::string, std::string>>& facts) {
  nlohmann::json line;
  for (const auto& [name, text] : facts) {
    std::printf("%s: %s\n", name.c_str(), text.c_str());
    line[name] = text;
  }
  std::fflush(stdout);
  WriteLine(json_, {{"facts", line}});
}

void ServingReport::Add(const Figure& figure) {
  ATELIER_CHECK(!figure.rounds.empty());
  const auto [least, most] = std::minmax_element(figure.rounds.begin(), figure.rounds.end());
  const double median = Median(figure.rounds);
  std::printf("%-9s %-28s %-34s %9.2f %-8s (%.2f to %.2f)\n", figure.experiment.c_str(),
              figure.variant.c_str(), figure.metric.c_str(), median, figure.unit.c_str(), *least,
              *most);
  std::fflush(stdout);
  WriteLine(json_, {{"experiment", figure.experiment},
                    {"variant", figure.variant},
                    {"metric", figure.metric},
                    {"unit", figure.unit},
                    {"median", median},
                    {"rounds", figure.rounds}});
}

void ServingReport::Add(const Target& target) {
  const char* bound = target.at_least ? "at least" : "at most";
  std::printf("%-9s %s: %.2f %s, target %s %.2f: %s\n", target.id.c_str(), target.what.c_str(),
              target.value, target.unit.c_str(), bound, target.limit,
              target.Holds() ? "holds" : "does not hold");
  std::fflush(stdout);
  WriteLine(json_, {{"target", target.id},
                    {"what", target.what},
                    {"value", target.value},
                    {"unit", target.unit},
                    {"bound", bound},
                    {"limit", target.limit},
                    {"holds", target.Holds()}});
}

void ServingReport::Skip(const std::string& what, const std::string& why) {
  std::printf("SKIPPED   %s: %s\n", what.c_str(), why.c_str());
  std::fflush(stdout);
  WriteLine(json_, {{"skipped", what}, {"why", why}});
}

absl::Status ServingReport::Written() const {
  if (json_path_.empty() || json_.good()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("--json=", json_path_, ": cannot be written"));
}

std::vector<double> Ratios(const std::vector<double>& a, const std::vector<double>& b) {
  ATELIER_CHECK(a.size() == b.size());
  std::vector<double> ratios;
  for (size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
  return ratios;
}

}  // namespace atelier
