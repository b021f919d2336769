#pragma once

#include "libs/base/flag_table.h"
#include "services/gpu-frontend/options.h"

namespace atelier {

// The command line of gpu-frontend; parsing it fills `options`, which must outlive the table.
FlagTable FrontendFlags(FrontendOptions* options);

}  // namespace atelier
