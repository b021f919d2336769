#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "tests/e2e/faults/link.h"

namespace atelier::faults {

// Moves this process into a network namespace of its own, so that its ports and addresses meet
// nobody else's. Before the process has threads. PERMISSION_DENIED where it may not.
absl::Status IsolateNetwork();

// A second host: another network namespace, joined to this process's by an emulated link.
class FarHost {
 public:
  // REQUIRES: IsolateNetwork succeeded. UNAVAILABLE with the system's reason (no TUN device, …).
  static absl::StatusOr<std::unique_ptr<FarHost>> Create(uint64_t seed);
  ~FarHost();

  int network_namespace() const { return namespace_; }
  // Where programs on it are reached from here.
  static std::string address() { return "10.77.0.2"; }
  Link& link() { return *link_; }

 private:
  FarHost() = default;

  int namespace_ = -1;
  std::unique_ptr<Link> link_;
};

}  // namespace atelier::faults
