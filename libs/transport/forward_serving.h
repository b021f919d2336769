#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "libs/base/clock.h"
#include "libs/transport/forward_fields.h"
#include "libs/transport/worker_protocol.h"

namespace atelier {

// What every way to call Forward needs. The handler and the clock outlive the server.
struct ForwardServing {
  WorkerHandler& handler;
  Clock& clock;
  ForwardShape shape;
  absl::Duration default_timeout;
  int64_t max_message_bytes = 0;
};

}  // namespace atelier
