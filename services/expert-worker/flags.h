#pragma once

#include "libs/base/flag_table.h"
#include "services/expert-worker/options.h"

namespace atelier {

// The flags of expert-worker, which fill `options`; it must outlive the table.
FlagTable WorkerFlags(WorkerOptions* options);

}  // namespace atelier
