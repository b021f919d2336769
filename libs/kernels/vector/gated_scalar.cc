#include "libs/kernels/vector/gated-inl.h"

namespace atelier {

void GatedScalar(const GatedArgs& args) { RunGated<OneFloat>(args); }

}  // namespace atelier
