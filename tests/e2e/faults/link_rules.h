#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace atelier::faults {

// What one direction of a link does to packets.
struct LinkRules {
  double loss = 0;  // probabilities
  double duplicate = 0;
  double reorder = 0;                           // a packet that those behind it overtake
  absl::Duration delay = absl::ZeroDuration();  // of every packet
  bool blocked = false;
};

// What becomes of one packet.
struct PacketFate {
  int copies = 1;
  absl::Duration delay;
};

// A pure function: the n-th packet of a direction with this seed always meets the same chance.
PacketFate DecideFate(const LinkRules& rules, uint64_t seed, uint64_t packet);

}  // namespace atelier::faults
