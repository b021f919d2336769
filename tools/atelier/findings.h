#pragma once

#include <string>
#include <vector>

#include "tools/atelier/machine_facts.h"

namespace atelier {

enum class Verdict { kOk, kWarning, kError };

// One line of `atelier doctor`.
struct Finding {
  std::string topic;  // "huge pages"
  Verdict verdict = Verdict::kOk;
  std::string fact;    // what is so
  std::string advice;  // what to do; empty where all is well
};

// What of a host helps or hinders workers, one finding a topic. An error is what a worker cannot do
// its work with; a warning costs speed or safety.
std::vector<Finding> Judge(const MachineFacts& facts);

Finding JudgeBandwidth(const ReadBandwidth& read);

int Count(const std::vector<Finding>& findings, Verdict verdict);
// Lines for people: verdict, topic, fact, and below it the advice.
std::string FindingsText(const std::vector<Finding>& findings);
// {"version", "errors", "warnings", "findings": [{"topic", "verdict", "fact", "advice"}]}.
std::string FindingsJson(const std::vector<Finding>& findings);

}  // namespace atelier
