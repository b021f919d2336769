#pragma once

#include <string>

#include "absl/status/status.h"
#include "libs/base/endpoint.h"

namespace atelier {

// Clears the way for listening on a Unix socket: removes the file of a server that is gone.
// UNAVAILABLE when somebody listens there, FAILED_PRECONDITION when the path is something else.
// A TCP endpoint is always OK.
absl::Status PrepareListenAddress(const Endpoint& endpoint);

// Why `endpoint` cannot be bound, asked of the kernel (gRPC only says that it could not).
std::string WhyNotBound(const Endpoint& endpoint);

}  // namespace atelier
