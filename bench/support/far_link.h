#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace atelier {

// A second host in a network namespace of its own, behind a link that delays every packet on its
// way there (TUN devices and a process that carries packets, since many kernels have no netem).
class FarLink {
 public:
  // Moves this process into a network namespace of its own first. Takes root and /dev/net/tun; the
  // error says which is missing. REQUIRES: this process has started no thread yet.
  static absl::StatusOr<std::unique_ptr<FarLink>> Start(absl::Duration delay);
  ~FarLink();
  FarLink(const FarLink&) = delete;

  // A file descriptor of the far host's namespace, and its address there.
  int network_namespace() const { return namespace_; }
  static std::string address();

 private:
  FarLink(pid_t carrier, int network_namespace)
      : carrier_(carrier), namespace_(network_namespace) {}

  const pid_t carrier_;
  const int namespace_;
};

}  // namespace atelier
