#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "libs/base/clock.h"
#include "libs/base/log.h"

namespace atelier {

// Reports a long job by log lines with done, total, rate and ETA, at most one every `interval` plus
// one at the end. Not thread-safe; owned by whoever runs the job.
class Progress {
 public:
  // `event` names the line, `unit` what is counted ("bytes", "layers").
  Progress(const Logger& logger, Clock& clock, std::string event, std::string unit, int64_t total,
           absl::Duration interval = absl::Seconds(2));

  void Add(int64_t done);

 private:
  void Report(absl::Time now);

  const Logger& logger_;
  Clock& clock_;
  std::string event_;
  std::string unit_;
  int64_t total_;
  absl::Duration interval_;
  int64_t done_ = 0;
  absl::Time start_;
  absl::Time last_report_;
};

}  // namespace atelier
