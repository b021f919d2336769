#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "libs/base/log.h"
#include "libs/numa/topology.h"

namespace atelier {

struct NodeArenaOptions {
  int numa_node = -1;   // -1 = the node of the lowest allowed CPU (or the only one)
  int num_threads = 0;  // 0 = CPUs of the node allowed by affinity, bounded by the cgroup's CPU
                        // quota (rounded up)
  bool pin_threads = true;
};

// Bytes in memory of one node, zeroed, 64-byte (in fact page) aligned. Movable; freed on
// destruction.
class NodeMemory {
 public:
  virtual ~NodeMemory() = default;
  virtual uint8_t* data() = 0;
  virtual size_t size() const = 0;
};

// A oneTBB arena whose threads are pinned to the CPUs of one NUMA node, and memory bound to it.
// What the machine does not offer (no NUMA, a cpuset, a refused memory policy or affinity call) is
// logged once and done without. Thread-safe.
class NodeArena {
 public:
  // INVALID_ARGUMENT names a node or thread count that the topology does not have, and what it has.
  static absl::StatusOr<std::unique_ptr<NodeArena>> Create(const NodeArenaOptions& options,
                                                           const Topology& topology,
                                                           const Logger& logger);
  virtual ~NodeArena() = default;

  virtual int num_threads() const = 0;
  virtual int numa_node() const = 0;
  // Keeps the calling thread on the node's CPUs for the rest of its life. For a thread that calls
  // ParallelFor for a living; the arena's own threads are pinned anyway, others are left alone.
  virtual void BindCallingThread() {}
  // Runs body(i) for i in [0, count) on the arena's threads, dynamically balanced, and returns when
  // all are done. The calling thread takes part. `body` may not throw. Allocates nothing of note;
  // costs microseconds, so give each index more work than that.
  virtual void ParallelFor(int64_t count, const std::function<void(int64_t)>& body) = 0;
  // On huge pages where the system has them (reserved ones, else transparent), bound to the node.
  // INVALID_ARGUMENT for no bytes; RESOURCE_EXHAUSTED with the size when the kernel refuses.
  virtual absl::StatusOr<std::unique_ptr<NodeMemory>> Allocate(size_t bytes) = 0;
  // Brings the pages of a read-only mapping into memory: those that are read from disk for it onto
  // the calling thread's node, so call it within ParallelFor; those that were in memory already are
  // moved to the arena's node where no other process has them mapped. DATA_LOSS when they cannot be
  // read.
  virtual absl::Status PageIn(const uint8_t* data, size_t bytes) = 0;
};

}  // namespace atelier
