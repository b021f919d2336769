#pragma once

#include "libs/base/termination.h"
#include "services/expert-worker/options.h"

namespace atelier {

// Serves until a termination signal and returns the exit status of the process: 0 after a drain (or
// a signal while loading), 1 when it could not start, with the reason in the log. A second signal
// ends the process at once with 128 + its number. `options` must be valid.
int RunWorker(const WorkerOptions& options, TerminationSignals& signals);

}  // namespace atelier
