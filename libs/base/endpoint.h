#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace atelier {

// Where a service listens or is reached: TCP, a Unix socket, or memory shared over one. A plain
// value.
struct Endpoint {
  std::string host;       // a name or an IP address, IPv6 without brackets; empty for a Unix socket
  int port = 0;           // 0 = any free one, where one listens
  std::string unix_path;  // absolute; empty for TCP
  bool shared_memory = false;  // what the Unix socket is for

  bool is_unix() const { return !unix_path.empty(); }
  // Only this machine can reach it: a Unix socket, 127.0.0.0/8, ::1, localhost. Another name is not
  // resolved and counts as reachable.
  bool IsLoopback() const;
  std::string ToString() const;  // as ParseEndpoint reads it
};

// "host:port", "[v6]:port", "unix:/path" or "shm:/path" (at most 107 bytes, the kernel's limit).
// INVALID_ARGUMENT quotes the text and says what is wrong with it.
absl::StatusOr<Endpoint> ParseEndpoint(absl::string_view text);

}  // namespace atelier
