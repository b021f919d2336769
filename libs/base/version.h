#pragma once

#include "absl/strings/string_view.h"

namespace atelier {

// Of this build, e.g. "0.1.0": what --version prints and peers are told.
absl::string_view Version();

}  // namespace atelier
