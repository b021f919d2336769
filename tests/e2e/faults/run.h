#pragma once

#include "tests/e2e/faults/options.h"

namespace atelier::faults {

// A whole run with its output; the exit status. Before the process has other threads.
int RunFaults(const Options& options);

}  // namespace atelier::faults
