#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/atelier/fetch/url.h"

namespace atelier {

// Where a checkpoint is published: a repository of a model hub, a folder of a web server, or a GGUF
// file on either. A plain value.
struct RemoteSource {
  std::string spelled;    // what a user gives to name it again
  std::string name;       // of the model, for a folder of that name
  Url folder;             // of its files; the path ends with '/'
  std::string gguf_file;  // name; empty = a Hugging Face folder
  // Of a hub: what stands between repository and file, so that another revision can take its place.
  bool is_hub = false;
  std::string revision;

  Url FileUrl(absl::string_view file) const;
  // The same at a commit: what is published meanwhile changes nothing. REQUIRES: is_hub.
  RemoteSource AtRevision(absl::string_view commit) const;
};

inline constexpr char kDefaultHub[] = "https://huggingface.co";

// Understands https://HUB/ORG/NAME[@REVISION] (also …/tree/REVISION), hf://ORG/NAME[@REVISION] at
// `hub`, URLs of folders (more or fewer than two names in the path, or a '/' at the end), and of
// GGUF files, also those that a hub's pages link to (…/blob/…, hf://ORG/NAME[@REVISION]/FILE).
// URLs of kDefaultHub go to `hub`, which may be a mirror. INVALID_ARGUMENT naming what is wrong.
absl::StatusOr<RemoteSource> ParseRemoteSource(absl::string_view text, absl::string_view hub);

}  // namespace atelier
