#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "libs/kernels/cpu_features.h"
#include "libs/numa/node_arena.h"

namespace atelier {

enum class Arithmetic { kInt8, kBf16 };

// What one ISA can compute, GOP/s (2 per multiply-add); 0 = it has nothing of its own.
struct IsaPeak {
  std::string isa;
  double int8 = 0;
  double bf16 = 0;
};

// What the machine does at best with so many threads: the best of many short runs, so that a busy
// neighbour does not lower the limit that results are held against.
struct MachineLimits {
  int threads = 0;
  double read_gb_per_s = 0;  // one sequential stream a thread, far larger than the caches
  std::vector<IsaPeak> peaks;

  // The peak of the ISA of that name (as in KernelEntry::isa); the best of all for a name that has
  // none of its own and for "best".
  double Peak(absl::string_view isa, Arithmetic arithmetic) const;
};

// `memory` is read for the bandwidth: several times the last-level cache, touched before.
MachineLimits MeasureMachine(const CpuFeatures& features, NodeArena& arena, NodeMemory& memory);

}  // namespace atelier
