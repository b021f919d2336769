#include "tests/e2e/faults/link_rules.h"

#include <random>

namespace atelier::faults {
namespace {

// Long enough for a few packets to overtake, short of a retransmission.
constexpr absl::Duration kOvertaken = absl::Milliseconds(2);

}  // namespace

PacketFate DecideFate(const LinkRules& rules, uint64_t seed, uint64_t packet) {
  std::seed_seq mixed{seed, seed >> 32, packet, packet >> 32};
  std::minstd_rand random(mixed);
  const auto happens = [&](double probability) {
    return static_cast<double>(random()) < probability * static_cast<double>(random.max());
  };
  const bool lost = happens(rules.loss);
  const bool twice = happens(rules.duplicate);
  const bool overtaken = happens(rules.reorder);
  PacketFate fate;
  fate.copies = rules.blocked || lost ? 0 : twice ? 2 : 1;
  fate.delay = rules.delay + (overtaken ? kOvertaken : absl::ZeroDuration());
  return fate;
}

}  // namespace atelier::faults
