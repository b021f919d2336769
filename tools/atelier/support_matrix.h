#pragma once

#include <string>

namespace atelier {

// docs/support-matrix.md: families, formats and methods, from the tables that the programs decide
// by. The same for every machine.
std::string SupportMatrix();

}  // namespace atelier
