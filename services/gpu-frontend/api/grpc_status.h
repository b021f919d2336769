#pragma once

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace atelier {

// The one place where our statuses become gRPC's. Codes cross unchanged, so that the gateway's
// mapping to HTTP holds (INVALID_ARGUMENT 400, RESOURCE_EXHAUSTED 429, UNAVAILABLE 503 …); long
// messages are cut, because they travel in a header of limited size.
grpc::Status ToApiStatus(const absl::Status& status);

}  // namespace atelier
