#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "absl/synchronization/mutex.h"

namespace atelier::faults {

// Stands between frontends and one worker on loopback and mistreats their connections. One thread;
// the methods are thread-safe and return once what they say is done.
class TcpProxy {
 public:
  // Forwards connections to `port` of this proxy to 127.0.0.1:`target_port`.
  TcpProxy(int port, int target_port);
  ~TcpProxy();

  void Cut();                  // resets every connection
  void Swallow(bool swallow);  // keeps them open, and new ones too, and carries nothing
  void Refuse(bool refuse);    // resets every connection, and nobody listens

 private:
  struct Pipe;
  struct Connection;

  void Run();
  void Listen() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ResetAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Accept() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Wake();

  const int port_;
  const int target_port_;
  const int wake_fd_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool swallowing_ ABSL_GUARDED_BY(mutex_) = false;
  int listener_ ABSL_GUARDED_BY(mutex_) = -1;
  std::list<Connection> connections_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace atelier::faults
