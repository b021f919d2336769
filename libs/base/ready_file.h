#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace atelier {

// Tells whoever started this process where it serves: lines key=value, which appear at `path` all
// at once (by rename), so a reader never sees half of them. INVALID_ARGUMENT naming the path and
// the system's reason.
absl::Status WriteReadyFile(const std::string& path,
                            const std::vector<std::pair<std::string, std::string>>& facts);

// Whether it could be written, found out by doing so under another name: before minutes of loading.
// What is at the path and no regular file (a device, a link) is refused: it would be replaced.
// Errors as WriteReadyFile's. OK for an empty path: none is wanted.
absl::Status CheckReadyFile(const std::string& path);

// Takes it away again; nothing happens when it is not there.
void RemoveReadyFile(const std::string& path);

}  // namespace atelier
