#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "libs/numa/node_arena.h"

namespace atelier {

// The system behind AllocateOnNode; tests put refusals in its place. The calls return what the
// system calls do and leave errno.
struct MemorySystem {
  std::string root = "/";                                       // of /sys
  std::function<void*(size_t bytes, int flags)> map;            // mmap, private and anonymous
  std::function<int(void* data, size_t bytes)> populate;        // madvise(MADV_POPULATE_WRITE)
  std::function<int(void* data, size_t bytes, int node)> bind;  // mbind to the node alone

  static MemorySystem Real();
};

struct NodeBytes {
  size_t bytes = 0;
  int bind_node = -1;  // -1 = wherever the kernel likes
};

// Zeroed memory: on huge pages that the administrator reserved (vm.nr_hugepages) where enough of
// them are free, on the node if it is bound; else on ordinary pages, from one huge page on aligned
// to and advised for transparent huge ones. A refused binding goes to `binding_refused`, and the
// memory is given anyway. INVALID_ARGUMENT for no bytes, RESOURCE_EXHAUSTED with the size when the
// kernel refuses.
absl::StatusOr<std::unique_ptr<NodeMemory>> AllocateOnNode(
    const NodeBytes& wanted, const MemorySystem& system,
    const std::function<void(const absl::Status&)>& binding_refused);

// As NodeArena::PageIn says. A refused move goes to `move_refused`.
absl::Status PageInOnNode(const uint8_t* data, const NodeBytes& wanted,
                          const std::function<void(const absl::Status&)>& move_refused);

// Huge pages of 2 MiB that are reserved and free, on a node (-1 = on all).
int64_t FreeHugePages(int node, const std::string& root);

}  // namespace atelier
