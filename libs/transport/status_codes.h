#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/support/status.h"
#include "proto/atelier/v1/expert.pb.h"

namespace atelier {

// The one place where canonical codes cross between Abseil, gRPC and our own wire. Codes pass
// unchanged; a number that is no canonical code becomes UNKNOWN. Messages for gRPC are cut to what
// fits a trailer; gRPC's own ("Socket closed", an empty one) are put in words.
absl::StatusCode CanonicalCode(int code);

grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

void ToWireStatus(const absl::Status& status, v1::Status* wire);
absl::Status FromWireStatus(const v1::Status& wire);

// The same code, with "<prefix>: " before the message. OK stays OK.
absl::Status Annotate(const absl::Status& status, absl::string_view prefix);

}  // namespace atelier
