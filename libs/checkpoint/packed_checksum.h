#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace atelier {

// XXH64 with seed 0 (the published algorithm, xxhash.com): finds what a disk or a copy has changed,
// at the speed of memory; no protection against someone who wants it to fit.
uint64_t PackedChecksum(absl::Span<const uint8_t> bytes);

}  // namespace atelier
