#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "libs/testing/child_process.h"

namespace atelier::faults {

struct ServiceSpec {
  std::string name;
  std::vector<std::string> command;  // without --ready-file
  std::string run_dir;               // its log and its ready file go there
  int network_namespace = -1;        // -1 = this process's own
};

// One of the real programs, started again and again. Not thread-safe; Start must be called on the
// main thread, whose end the program shares.
class ServiceProcess {
 public:
  explicit ServiceProcess(ServiceSpec spec);

  // REQUIRES: it does not run.
  void Start();
  void Signal(int number);
  // SIGKILL, and waits for the end.
  void Kill();
  // Waits for an end that was asked for; its exit status, as ChildProcess::Wait gives it.
  int Wait();
  bool Running();
  // Whether the program as last started has said that it serves.
  bool Ready();
  // Of its ready file; empty when it is not there.
  std::string Fact(const std::string& key);
  // Not OK when it has ended unasked: with its exit status and the end of its log.
  absl::Status CheckAlive();

  const std::string& name() const { return spec_.name; }
  pid_t pid() const { return process_->pid(); }

 private:
  const ServiceSpec spec_;
  const std::string ready_file_;
  std::unique_ptr<testing::ChildProcess> process_;
  std::map<std::string, std::string> facts_;  // of the program as last started
};

}  // namespace atelier::faults
