#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "tools/atelier/fetch/http_client.h"

namespace atelier {

// What libcurl needs once in a process, before any thread uses it. Lives as long as all clients.
class CurlLibrary {
 public:
  CurlLibrary();
  ~CurlLibrary();
  CurlLibrary(const CurlLibrary&) = delete;
  CurlLibrary& operator=(const CurlLibrary&) = delete;
};

struct CurlOptions {
  std::string user_agent;
  absl::Duration connect_timeout = absl::Seconds(20);
  // A connection that carries nothing for as long is given up. Whole seconds.
  absl::Duration stall_timeout = absl::Seconds(30);
};

std::unique_ptr<HttpClient> CreateCurlHttpClient(const CurlOptions& options);

}  // namespace atelier
