#include "libs/base/endpoint.h"

#include <arpa/inet.h>
#include <sys/un.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace atelier {
namespace {

absl::Status Bad(absl::string_view text, absl::string_view problem) {
  return absl::InvalidArgumentError(
      absl::StrCat("address \"", text, "\": ", problem,
                   "; use host:port, [v6]:port, unix:/absolute/path or shm:/absolute/path"));
}

absl::StatusOr<Endpoint> ParseUnix(absl::string_view text, absl::string_view path) {
  constexpr size_t kMaxPathBytes = sizeof(sockaddr_un::sun_path) - 1;
  if (!absl::StartsWith(path, "/")) return Bad(text, "the path of a Unix socket must be absolute");
  if (path.size() > kMaxPathBytes) {
    return Bad(text, absl::StrCat("the path has ", path.size(), " bytes, the kernel takes ",
                                  kMaxPathBytes));
  }
  if (std::any_of(path.begin(), path.end(), absl::ascii_iscntrl)) {
    return Bad(text, "the path has a control character");
  }
  Endpoint endpoint;
  endpoint.unix_path = std::string(path);
  return endpoint;
}

bool IsHostCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '_';
}

bool IsIpv6(const std::string& host) {
  in6_addr ignored;
  return ::inet_pton(AF_INET6, host.c_str(), &ignored) == 1;
}

// Digits only: SimpleAtoi would take "+80" and blanks.
bool ParsePort(absl::string_view text, int& port) {
  const bool digits = std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  return digits && absl::SimpleAtoi(text, &port) && port <= 65535;
}

}  // namespace

bool Endpoint::IsLoopback() const {
  if (is_unix() || host == "localhost" || host == "::1") return true;
  in_addr v4;
  return ::inet_pton(AF_INET, host.c_str(), &v4) == 1 && (ntohl(v4.s_addr) >> 24) == 127;
}

std::string Endpoint::ToString() const {
  if (is_unix()) return absl::StrCat(shared_memory ? "shm:" : "unix:", unix_path);
  const bool is_v6 = absl::StrContains(host, ':');
  return absl::StrCat(is_v6 ? "[" : "", host, is_v6 ? "]" : "", ":", port);
}

absl::StatusOr<Endpoint> ParseEndpoint(absl::string_view text) {
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "unix:")) return ParseUnix(text, rest);
  if (absl::ConsumePrefix(&rest, "shm:")) {
    absl::StatusOr<Endpoint> endpoint = ParseUnix(text, rest);
    if (endpoint.ok()) endpoint->shared_memory = true;
    return endpoint;
  }
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return Bad(text, "the port is missing");
  Endpoint endpoint;
  absl::string_view host = text.substr(0, colon);
  if (!ParsePort(text.substr(colon + 1), endpoint.port)) {
    return Bad(text, "the port must be a number from 0 to 65535");
  }
  const bool bracketed = absl::ConsumePrefix(&host, "[") && absl::ConsumeSuffix(&host, "]");
  endpoint.host = std::string(host);
  if (host.empty()) return Bad(text, "the host is missing (0.0.0.0 or [::] for every interface)");
  const bool valid =
      bracketed ? IsIpv6(endpoint.host) : std::all_of(host.begin(), host.end(), IsHostCharacter);
  if (!valid) return Bad(text, "the host is no name or IP address (IPv6 needs brackets)");
  return endpoint;
}

}  // namespace atelier
