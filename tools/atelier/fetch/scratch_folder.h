#pragma once

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace atelier {

// A folder with a name of its own that is removed with all it holds. Thread-safe.
class ScratchFolder {
 public:
  ScratchFolder() = default;
  ~ScratchFolder() { Remove(); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  // Makes it in `parent`; the one before is removed. Its path, or the system's error. CANCELLED
  // once Forbid was called.
  absl::StatusOr<std::string> Make(const std::string& parent);
  void Remove();
  // Removes it for good, also while others write to it: they find it gone.
  void Forbid();

 private:
  void RemoveLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  std::string path_ ABSL_GUARDED_BY(mutex_);
  bool forbidden_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace atelier
