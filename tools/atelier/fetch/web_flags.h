#pragma once

#include <string>

#include "absl/time/time.h"
#include "libs/base/flag_table.h"
#include "tools/atelier/fetch/checkpoint_fetcher.h"
#include "tools/atelier/fetch/curl_http_client.h"

namespace atelier {

// How commands reach servers. Defaults of the hub and its token come from the environment
// (HF_ENDPOINT, HF_TOKEN), which is read here alone.
struct WebFlags {
  WebFlags();

  std::string hub;
  std::string token;      // goes to the host of the URL
  std::string hub_token;  // goes to `hub` only
  int jobs = 8;
  int retries = 7;
  absl::Duration retry_wait = absl::Milliseconds(500);
  absl::Duration stall_timeout = absl::Seconds(30);
};

FlagSection WebFlagSection(WebFlags* flags);

// REQUIRES: options.source is set.
void ApplyWebFlags(const WebFlags& flags, FetcherOptions& options);

}  // namespace atelier
