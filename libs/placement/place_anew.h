#pragma once

#include <cstdint>
#include <vector>

#include "libs/placement/placement_state.h"

namespace atelier {

// Fills the empty `state`: the hottest units first, each copy to the least loaded site that may
// take it, layer by layer; where memory is so short that this gets stuck, to the one with the most
// room. Bytes that found no place; 0 = all is placed. Finds a place for everything whenever there
// is one, if all units are of one size.
int64_t PlaceAnew(const PlacementProblem& problem, const std::vector<int>& domains,
                  PlacementState& state);

}  // namespace atelier
