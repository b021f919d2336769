#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "libs/transport/connection_call.h"

namespace atelier {

// The messages of a connection that wait for an answer, by the id on the wire. Thread-safe.
class InFlightTable {
 public:
  struct Part {
    std::shared_ptr<ConnectionCall> call;
    int row_begin = 0;
    int row_end = 0;
  };
  struct Expired {
    std::shared_ptr<ConnectionCall> call;
    std::vector<uint64_t> ids;
  };

  // The id, never used before on this connection.
  uint64_t Add(Part part);
  // nullopt: nobody waits for it (it came late, or the peer made it up).
  std::optional<Part> Take(uint64_t id);
  // The ids that were waiting.
  std::vector<uint64_t> Remove(const ConnectionCall& call);
  std::vector<Expired> TakeExpired(absl::Time now);
  std::vector<std::shared_ptr<ConnectionCall>> TakeAll();

  bool empty() const;
  // Infinite when empty.
  absl::Time NextDeadline() const;

 private:
  mutable absl::Mutex mutex_;
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<uint64_t, Part> parts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace atelier
