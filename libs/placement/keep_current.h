#pragma once

#include <optional>

#include "libs/placement/placement_state.h"

namespace atelier {

// Fills the empty `state` with what problem.current has and still may be, adds the copies that are
// missing, and moves few until the busiest site of every layer is as little loaded as in `anew`,
// but for the problem's tolerance; a layer that this cannot reach is taken from `anew`. Null =
// there is nothing to compare with. nullopt where it does not succeed: then `anew` is the better
// plan.
std::optional<Holders> KeepCurrent(const PlacementProblem& problem, const PlacementState* anew,
                                   PlacementState& state);

}  // namespace atelier
