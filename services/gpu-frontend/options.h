#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "libs/client/client.h"

namespace atelier {

// Everything a frontend can be told, with its defaults. A plain value; flags.cc fills it.
struct FrontendOptions {
  std::string model_path;         // checkpoint folder; required
  std::string served_model_name;  // empty = the folder's name
  std::string tokenizer_path;     // folder of the tokenizer files; empty = model_path
  // What the gateway is told instead of tokenizer_path and model_path; empty = those.
  std::string advertised_path;

  std::string host = "127.0.0.1";
  int port = 20000;  // 0 = any free one
  std::string metrics_address = "127.0.0.1:20001";
  bool insecure = false;   // allows plaintext between machines: of host and of workers
  std::string ready_file;  // written once serving; empty = none
  std::string log_level = "info";

  std::vector<std::string> workers;  // "host:port", "[v6]:port", "unix:/path"; required
  ClientSecurity worker_security;    // of those reached over TCP
  absl::Duration worker_timeout = absl::Seconds(10);   // of one layer's call
  absl::Duration connect_timeout = absl::Minutes(10);  // until every expert is there, at start
  // Calls that go to a second replica because the first is late, in percent of all; 0 = none.
  int hedge_percent = 5;
  // How long a call waits for a replica to come back when none of several is left.
  absl::Duration replica_grace = absl::Seconds(3);

  std::string device = "cpu";
  std::string device_experts;  // file naming routed experts that the device computes; empty = none
  int threads = 0;             // 0 = what the machine offers
  std::string cpu_isa = "auto";

  int context_length = 0;  // 0 = the model's
  int max_running_requests = 64;
  int max_queued_requests = 1024;
  int64_t kv_cache_bytes = int64_t{1} << 30;
  int64_t max_total_tokens = 0;  // caps the KV cache; 0 = what kv_cache_bytes holds
  int page_size = 16;
  int chunked_prefill_size = 512;
  absl::Duration max_step_time = absl::Milliseconds(80);  // of a shared step; 0 = no bound
  int stream_interval = 1;
  bool disable_prefix_cache = false;
  int64_t random_seed = -1;  // of requests that bring none; -1 = a fresh one per start

  absl::Duration drain_timeout = absl::Seconds(30);

  // INVALID_ARGUMENT (or UNIMPLEMENTED for another device than cpu) naming the flag, its value and
  // what is valid. Touches nothing outside the value.
  absl::Status Validate() const;
  // Validate, and the defaults that follow from other fields: absolute paths, the model's name.
  absl::Status Resolve();
  // Where the API listens, as ParseEndpoint reads it.
  std::string ListenAddress() const;
};

}  // namespace atelier
