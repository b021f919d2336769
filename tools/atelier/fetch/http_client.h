#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "libs/checkpoint/byte_ranges.h"

namespace atelier {

struct HttpRequest {
  std::string url;                 // http or https
  std::optional<ByteRange> range;  // unset = all of it
  std::string bearer_token;        // empty = none
  std::string if_none_match;       // empty = none
};

// Content-Range of a 206.
struct ContentRange {
  ByteRange range;
  std::optional<uint64_t> total;  // of the whole file; unset where the server does not say
};

struct HttpHead {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case

  absl::string_view Header(absl::string_view name) const;  // empty where there is none
  std::optional<uint64_t> ContentLength() const;
  std::optional<ContentRange> Range() const;  // nullopt also where it makes no sense
  // What names the content: the ETag, else Last-Modified, else nothing.
  std::string Validator() const;
};

// Takes what a server answers. A status that is not OK ends the exchange and is returned by it.
class HttpBody {
 public:
  virtual ~HttpBody() = default;
  virtual absl::Status Begin(const HttpHead& head) = 0;
  virtual absl::Status Write(absl::Span<const uint8_t> bytes) = 0;
};

// Speaks HTTP to any number of servers, one exchange at a time, and keeps connections for the next
// one. Not thread-safe. Follows no redirects.
class HttpClient {
 public:
  virtual ~HttpClient() = default;
  // Blocks. Whatever status the server gives is no error here, and neither is a body of any length
  // that agrees with its Content-Length. UNAVAILABLE for connections that cannot be made, end
  // early or carry nothing for too long; FAILED_PRECONDITION for certificates that do not prove
  // who answers; errors of `body`.
  virtual absl::StatusOr<HttpHead> Get(const HttpRequest& request, HttpBody& body) = 0;
};

}  // namespace atelier
