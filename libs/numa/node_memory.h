#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "libs/numa/node_arena.h"

namespace atelier {

// Maps zeroed pages. From one huge page on the block is aligned to, and advised for, huge pages.
// RESOURCE_EXHAUSTED with the size when the kernel refuses. REQUIRES: bytes > 0.
absl::StatusOr<std::unique_ptr<NodeMemory>> MapMemory(size_t bytes);

// Binds pages that were not touched yet to the node. UNAVAILABLE with the system's reason when the
// memory policy is refused (containers often forbid it).
absl::Status BindToNode(NodeMemory& memory, int numa_node);

}  // namespace atelier
