#include "libs/base/version.h"

namespace atelier {

absl::string_view Version() { return ATELIER_VERSION; }

}  // namespace atelier
