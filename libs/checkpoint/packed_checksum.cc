#include "libs/checkpoint/packed_checksum.h"

#include <bit>
#include <cstring>

namespace atelier {
namespace {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87u;
constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4Fu;
constexpr uint64_t kPrime3 = 0x165667B19E3779F9u;
constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63u;
constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5u;
constexpr size_t kStripeBytes = 32;

template <typename Word>
uint64_t Load(const uint8_t* at) {
  Word word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

uint64_t Round(uint64_t lane, uint64_t word) {
  return std::rotl(lane + word * kPrime2, 31) * kPrime1;
}

// Whole stripes, four independent lanes; moves `at` behind them.
uint64_t HashStripes(const uint8_t*& at, size_t stripes) {
  uint64_t lanes[4] = {kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1};
  for (size_t i = 0; i < stripes; ++i, at += kStripeBytes) {
    for (size_t lane = 0; lane < 4; ++lane) {
      lanes[lane] = Round(lanes[lane], Load<uint64_t>(at + 8 * lane));
    }
  }
  uint64_t hash = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) +
                  std::rotl(lanes[3], 18);
  for (const uint64_t lane : lanes) hash = (hash ^ Round(0, lane)) * kPrime1 + kPrime4;
  return hash;
}

uint64_t HashTail(uint64_t hash, const uint8_t* at, size_t left) {
  for (; left >= 8; at += 8, left -= 8) {
    hash = std::rotl(hash ^ Round(0, Load<uint64_t>(at)), 27) * kPrime1 + kPrime4;
  }
  if (left >= 4) {
    hash = std::rotl(hash ^ Load<uint32_t>(at) * kPrime1, 23) * kPrime2 + kPrime3;
    at += 4;
    left -= 4;
  }
  for (; left > 0; ++at, --left) hash = std::rotl(hash ^ *at * kPrime5, 11) * kPrime1;
  return hash;
}

}  // namespace

uint64_t PackedChecksum(absl::Span<const uint8_t> bytes) {
  const uint8_t* at = bytes.data();
  const size_t stripes = bytes.size() / kStripeBytes;
  uint64_t hash = stripes > 0 ? HashStripes(at, stripes) : kPrime5;
  hash = HashTail(hash + bytes.size(), at, bytes.size() % kStripeBytes);
  hash = (hash ^ hash >> 33) * kPrime2;
  hash = (hash ^ hash >> 29) * kPrime3;
  return hash ^ hash >> 32;
}

}  // namespace atelier
