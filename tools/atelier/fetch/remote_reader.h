#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libs/checkpoint/byte_ranges.h"
#include "tools/atelier/fetch/reader_body.h"
#include "tools/atelier/fetch/remote_file.h"
#include "tools/atelier/fetch/retries.h"

namespace atelier {

// A small file that is read whole.
struct SmallFile {
  bool not_modified = false;  // it has the etag that was given, and no content here
  std::string content;
  std::string etag;
  std::string commit;  // of a hub's repository
};

// All functions must be set.
struct ReaderOptions {
  Credentials credentials;
  RetryPolicy retries;
  std::function<void(absl::Duration)> sleep;
  std::function<bool()> stopped;  // true ends waiting and reading with CANCELLED
  std::function<absl::Time()> now;
};

// Reads remote files over one client, retrying what may succeed later. Not thread-safe; one per
// thread. Errors name the file's URL: NOT_FOUND, UNAUTHENTICATED, PERMISSION_DENIED, UNAVAILABLE
// (after all retries), ABORTED (the content changed), DATA_LOSS (answers that contradict the
// request or each other), UNIMPLEMENTED (see ReadRange), errors of the sink.
class RemoteReader {
 public:
  RemoteReader(std::unique_ptr<HttpClient> client, ReaderOptions options, uint64_t seed)
      : client_(std::move(client)),
        options_(std::move(options)),
        retries_(options_.retries, options_.sleep, options_.stopped, seed) {}

  // A dropped connection is continued where it broke. `range` may reach beyond the end of a file of
  // unknown size. UNIMPLEMENTED, before any byte is written, if the server sends whole files only.
  absl::Status ReadRange(RemoteFile& file, ByteRange range, ByteSink& sink);
  // The whole file by one request, from the start again after each failure.
  absl::Status ReadWhole(RemoteFile& file, ByteSink& sink);
  // RESOURCE_EXHAUSTED for more than max_bytes. `etag`: of what the caller has; empty = nothing.
  absl::StatusOr<SmallFile> ReadSmall(const Url& url, uint64_t max_bytes, const std::string& etag);

 private:
  Retries::Attempt Try(const HttpRequest& request, ReaderBody& body, Answer& answer);
  Retries::Attempt TryRange(RemoteFile& file, ByteRange& left, ByteSink& sink);

  const std::unique_ptr<HttpClient> client_;
  const ReaderOptions options_;
  Retries retries_;
};

}  // namespace atelier
