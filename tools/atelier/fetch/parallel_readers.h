#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "tools/atelier/fetch/remote_reader.h"

namespace atelier {

// Reads over several connections at once. Borrows what makes them. Not thread-safe.
class ParallelReaders {
 public:
  using Connect = std::function<std::unique_ptr<HttpClient>()>;

  ParallelReaders(int jobs, const Connect& connect, const ReaderOptions& options);

  // Runs task(reader, 0) to task(reader, count - 1), at most `jobs` at a time, each on a thread of
  // its own. The first failure stops the others and is returned.
  absl::Status Run(size_t count, const std::function<absl::Status(RemoteReader&, size_t)>& task);

 private:
  std::unique_ptr<RemoteReader> NewReader();

  const int jobs_;
  const Connect& connect_;
  ReaderOptions options_;
  std::atomic<bool> stopped_ = false;
  uint64_t seed_;
};

}  // namespace atelier
