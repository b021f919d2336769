#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "libs/checkpoint/checkpoint.h"
#include "tools/atelier/fetch/checkpoint_fetcher.h"
#include "tools/atelier/fetch/scratch_folder.h"

namespace atelier {

// Where few megabytes for a moment cost least: memory, then the system's folder for such files.
std::vector<std::string> ScratchParents();

// A published checkpoint of which nothing is read but config, index, headers, the ends of the data
// (which the digest is of), and the few small tensors of codes whose values decide whether they can
// be computed. They lie in `scratch` only while this runs: what is returned has them mapped.
// `parents` are tried in turn while there is no room. Errors as CheckpointFetcher's (with
// headers_only) and Checkpoint::Open's, naming the source instead of the scratch folder.
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenRemoteHeaders(
    FetcherOptions options, const std::vector<std::string>& parents, ScratchFolder& scratch);

}  // namespace atelier
