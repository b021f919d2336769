#include "services/gpu-frontend/api/grpc_status.h"

#include <string>

namespace atelier {
namespace {

// HTTP/2 peers commonly refuse more than 8 KiB of headers, and percent-encoding can triple a byte.
constexpr size_t kMaxMessageBytes = 2000;

}  // namespace

grpc::Status ToApiStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()),
                      std::string(status.message().substr(0, kMaxMessageBytes)));
}

}  // namespace atelier
