#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace atelier {

// A file for other processes, which appears at `path` all at once (by rename), so a reader never
// sees half of it. Until then it has a name of its own beside it, and nothing is left of a failure.
// The system's reason in canonical form, "cannot be written: …", without the path.
absl::Status WriteWholeFile(const std::string& path, absl::string_view text);

// FAILED_PRECONDITION where something other than a regular file is at `path`, which a rename would
// take away: a device, a link, a folder. OK where nothing is.
absl::Status CheckReplaceable(const std::string& path);

// Whether a file can be made beside `path`, found out by making one. Errors as WriteWholeFile's.
absl::Status CheckFolderWritable(const std::string& path);

}  // namespace atelier
