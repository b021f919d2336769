#pragma once

#include <array>
#include <cstdint>
#include <queue>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "tests/e2e/faults/link_rules.h"

namespace atelier::faults {

// Carries IP packets between two TUN devices by rules that can change at any time: what netem does,
// where the kernel has none, and the same again for the same seed. Two threads; thread-safe.
class Link {
 public:
  // Owns the file descriptors, which must not block.
  Link(int near_fd, int far_fd, uint64_t seed);
  ~Link();

  enum Direction { kToFar = 0, kToNear = 1 };
  void SetRules(Direction direction, const LinkRules& rules);
  void SetBoth(const LinkRules& rules);
  void Mend() { SetBoth({}); }

 private:
  struct Packet {
    absl::Time due;
    uint64_t order = 0;  // of those due at once
    std::string bytes;
    bool operator<(const Packet& other) const {  // the top of a queue is its largest
      return due != other.due ? due > other.due : order > other.order;
    }
  };

  void Run(Direction direction);
  void Take(Direction direction, uint64_t* count, std::priority_queue<Packet>* waiting);
  // Until something arrives or the first waiting packet is due. False = the link ends.
  bool Await(int fd, const std::priority_queue<Packet>& waiting);

  const std::array<int, 2> from_;  // by direction
  const std::array<int, 2> to_;
  const uint64_t seed_;
  const int stop_fd_;
  absl::Mutex mutex_;
  std::array<LinkRules, 2> rules_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace atelier::faults
