#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "libs/base/clock.h"
#include "libs/base/log.h"
#include "libs/transport/worker_connection.h"

namespace atelier::faults {

// A client that asks a worker for more at once than its ring and its queue hold, and is gone, with
// most of it unanswered, when destroyed.
class Flood {
 public:
  // Blocks until everything is asked. UNAVAILABLE when there is no connection, INTERNAL when the
  // ring took all of it.
  static absl::StatusOr<std::unique_ptr<Flood>> Start(const std::string& address);

 private:
  Flood() = default;

  absl::Status Ask(const std::string& address);

  SystemClock clock_;
  Logger logger_{Severity::kError};
  std::atomic<int> refused_{0};
  std::unique_ptr<WorkerConnection> connection_;
  std::vector<std::unique_ptr<ForwardInFlight>> calls_;  // destroyed first: they count refused_
};

}  // namespace atelier::faults
