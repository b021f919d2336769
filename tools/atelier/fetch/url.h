#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace atelier {

// An http or https URL in its parts.
struct Url {
  std::string scheme;  // "http" or "https"
  std::string host;    // lower case; an IPv6 address in brackets
  std::string port;    // always set
  std::string path;    // begins with '/'; escaped as it was
  std::string query;   // without '?'; empty = none

  std::string origin() const;  // "https://host:443"
  std::string text() const;
  // Whether what is sent there stays on this machine.
  bool is_loopback() const;
};

// INVALID_ARGUMENT for what is no such URL, and for one with a user name or password in it.
absl::StatusOr<Url> ParseUrl(absl::string_view text);
// Where a redirect from `base` to `location`, which may be relative, leads.
absl::StatusOr<Url> ResolveUrl(const Url& base, absl::string_view location);
// A file's name as a segment of a path.
std::string EscapeSegment(absl::string_view name);
// The other way. INVALID_ARGUMENT for what could not be the name of a file in a folder.
absl::StatusOr<std::string> UnescapeSegment(absl::string_view segment);

}  // namespace atelier
