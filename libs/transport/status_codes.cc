#include "libs/transport/status_codes.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace atelier {
namespace {

// gRPC refuses trailers above 8 KiB, and percent-encoding can triple a byte.
constexpr size_t kMaxGrpcMessageBytes = 2000;

// What gRPC itself says, or fails to say, in our words; what a peer of ours says as it is.
std::string PlainMessage(const grpc::Status& status) {
  const std::string& text = status.error_message();
  if (text == "Cancelling all calls") return "the peer is shutting down";
  if (text == "Socket closed" || absl::StrContains(text, "Connection reset by peer")) {
    return "the peer closed the connection";
  }
  if (!text.empty() && text != "CANCELLED") return text;
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return "";
    case grpc::StatusCode::CANCELLED:
      return "the call was cancelled";
    case grpc::StatusCode::UNIMPLEMENTED:
      return "the peer does not know this call: is it an Atelier service of this version?";
    default:
      return "the peer gave no reason";
  }
}

std::string Text(absl::string_view text) { return std::string(text.data(), text.size()); }

}  // namespace

absl::StatusCode CanonicalCode(int code) {
  const bool known = code >= 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown;
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      Text(status.message().substr(0, kMaxGrpcMessageBytes)));
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  return absl::Status(CanonicalCode(static_cast<int>(status.error_code())), PlainMessage(status));
}

void ToWireStatus(const absl::Status& status, v1::Status* wire) {
  wire->set_code(static_cast<int>(status.code()));
  wire->set_message(Text(status.message()));
}

absl::Status FromWireStatus(const v1::Status& wire) {
  return absl::Status(CanonicalCode(wire.code()), wire.message());
}

absl::Status Annotate(const absl::Status& status, absl::string_view prefix) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(prefix, ": ", status.message()));
}

}  // namespace atelier
