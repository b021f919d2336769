#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace atelier::testing {

// What else a child gets.
struct ChildSetup {
  int network_namespace = -1;  // a file descriptor of it; -1 = this process's own
  // SIGKILL when the thread that made it ends, for programs that must not outlive a killed test.
  bool dies_with_parent = false;
};

// A program under test, with its output in a file. Killed, if it still runs, when the object goes.
class ChildProcess {
 public:
  // arguments[0] is the program. Output and errors go to `log_path`.
  ChildProcess(const std::vector<std::string>& arguments, std::string log_path,
               ChildSetup setup = {});
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  void Signal(int number) const;
  // Blocks until it ends: its exit status, or 1000 + the signal that killed it.
  int Wait();
  bool Running();
  std::string Log() const;
  pid_t pid() const { return pid_; }

 private:
  void Reap(int options);

  std::string log_path_;
  pid_t pid_ = -1;
  int status_ = -1;  // as Wait gives it; -1 = running
};

// Asks `condition` every few milliseconds until it is true; false after `seconds`, which only a
// broken program needs.
bool WaitUntil(const std::function<bool()>& condition, double seconds = 60);

// Sends `text` to 127.0.0.1:port and returns everything that comes back until the peer closes;
// empty when there is none.
std::string ExchangeWithPort(int port, const std::string& text);

// GET of `path`: the whole answer.
std::string HttpGet(int port, const std::string& path);

}  // namespace atelier::testing
