#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "libs/model/dtype.h"
#include "libs/model/shard.h"
#include "libs/transport/security.h"

namespace atelier {

// Everything a worker can be told, with its defaults. A plain value; flags.cc fills it.
struct WorkerOptions {
  std::string model_path;           // checkpoint folder; required
  std::string shard_slice = "0/1";  // i/n
  std::string experts;              // a-b, both included; empty = all
  std::string placement;            // file of who holds what; empty = as the two above say
  std::string worker;               // which of its workers this one is
  std::string skip_experts;         // file of experts that are not held; empty = none
  std::string method = "auto";      // of MethodChoices(); auto = the published precision
  std::string store_dir;            // packed weights that outlive the process; empty = in memory
  bool populate = false;            // reads all of them before serving

  std::vector<std::string> listen = {"127.0.0.1:7070"};  // at least one
  // Memory shared with clients on this host, over a Unix socket at this path; empty = off.
  std::string shm_listen;
  std::vector<std::string> shm_allow_uids;  // numbers; empty = this process's own user
  int shm_max_clients = 16;
  int64_t shm_bytes_per_client = int64_t{256} << 20;
  absl::Duration shm_spin = absl::Microseconds(50);  // how long both sides look before they sleep
  bool insecure = false;                             // allows addresses others reach
  ServerSecurity security;
  std::string metrics_address = "127.0.0.1:9400";
  std::string ready_file;  // written once serving; empty = none

  int numa_node = -1;  // -1 = that of the lowest allowed CPU
  int threads = 0;     // 0 = the node's allowed CPUs, bounded by the cgroup's quota
  bool pin_threads = true;
  std::string cpu_isa = "auto";

  int max_queued_calls = 1024;
  int max_queued_tokens = 65536;
  int max_tokens_per_call = 8192;
  int64_t max_message_bytes = int64_t{256} << 20;
  absl::Duration default_timeout = absl::Seconds(60);  // of requests that bring no deadline
  absl::Duration drain_timeout = absl::Seconds(30);
  std::string log_level = "info";
  bool capabilities = false;  // print the method x ISA matrix and exit

  // INVALID_ARGUMENT naming the flag, its value and what is valid. Touches nothing outside.
  absl::Status Validate() const;
  // REQUIRES: valid.
  std::optional<Method> RequestedMethod() const;  // nullopt = auto
  ShardSpec Shard(int num_experts) const;         // where there is no placement
  std::vector<uint32_t> ShmAllowUids() const;
  std::string ToString() const;  // key=value of every option, for the start-up log
};

// What --method takes: "auto", "bf16", … in lower case.
std::vector<std::string> MethodChoices();

inline constexpr int64_t kMinMessageBytes = int64_t{64} << 10;
// gRPC counts a message's bytes in an int.
inline constexpr int64_t kMaxMessageBytes = (int64_t{1} << 31) - 1;

}  // namespace atelier
