#include "tools/atelier/fetch/remote_source.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "libs/base/quoted.h"
#include "libs/base/status_macros.h"

namespace atelier {
namespace {

constexpr absl::string_view kHubScheme = "hf://";
constexpr absl::string_view kDefaultRevision = "main";

using Names = std::vector<std::string>;

absl::Status Refuse(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(
      Quoted(text), " ", why, "; give https://HOST/ORG/NAME[@REVISION], hf://ORG/NAME[@REVISION], ",
      "the URL of a folder, with / at its end, or the URL of a .gguf file"));
}

std::string FolderPath(const Names& names) {
  return names.empty() ? "/" : absl::StrCat("/", absl::StrJoin(names, "/"), "/");
}

// "NAME@REVISION" as both.
std::pair<std::string, std::string> SplitRevision(absl::string_view name) {
  const size_t at = name.find('@');
  if (at == absl::string_view::npos) return {std::string(name), std::string(kDefaultRevision)};
  return {std::string(name.substr(0, at)), std::string(name.substr(at + 1))};
}

// The first names of `names` are those of the repository, perhaps with a revision; the rest are
// folders and the file within it.
absl::StatusOr<RemoteSource> InRepository(const Url& hub, const Names& names,
                                          std::string revision) {
  RemoteSource source;
  source.is_hub = true;
  source.revision = std::move(revision);
  ATELIER_ASSIGN_OR_RETURN(source.name, UnescapeSegment(names[1]));
  source.folder = hub;
  Names path(names.begin(), names.begin() + 2);
  path.insert(path.end(), {"resolve", source.revision});
  const bool has_file = names.size() > 2;
  if (has_file) {
    path.insert(path.end(), names.begin() + 2, names.end() - 1);
    ATELIER_ASSIGN_OR_RETURN(source.gguf_file, UnescapeSegment(names.back()));
  }
  absl::string_view prefix = hub.path;
  absl::ConsumeSuffix(&prefix, "/");
  source.folder.path = absl::StrCat(prefix, FolderPath(path));
  return source;
}

// What hub pages call …/NAME/KIND/REVISION/…; the names without KIND and REVISION.
bool TakePage(absl::string_view kind, Names& names, std::string& revision) {
  if (names.size() < 4 || names[2] != kind) return false;
  revision = names[3];
  names.erase(names.begin() + 2, names.begin() + 4);
  return true;
}

absl::Status CheckFile(absl::string_view text, const RemoteSource& source) {
  const bool valid = source.gguf_file.empty() || absl::EndsWith(source.gguf_file, ".gguf");
  if (!valid) return Refuse(text, "names a file that is no .gguf");
  if (source.is_hub && source.revision.empty()) return Refuse(text, "names no revision after @");
  return absl::OkStatus();
}

absl::StatusOr<RemoteSource> ParseHubName(absl::string_view text, const Url& hub) {
  Names names = absl::StrSplit(absl::StripPrefix(text, kHubScheme), '/', absl::SkipEmpty());
  if (names.size() < 2) return Refuse(text, "is not hf://ORG/NAME");
  auto [name, revision] = SplitRevision(names[1]);
  names[1] = name;
  return InRepository(hub, names, std::move(revision));
}

absl::StatusOr<RemoteSource> ParseWebUrl(absl::string_view text, const Url& hub) {
  ATELIER_ASSIGN_OR_RETURN(Url url, ParseUrl(text));
  if (url.query == "download=true") url.query.clear();  // of a hub's download button
  if (!url.query.empty()) {
    return Refuse(text.substr(0, text.find('?')), "has a query, which may be a secret");
  }
  Names names = absl::StrSplit(url.path, '/', absl::SkipEmpty());
  static constexpr char kDefaultOrigin[] = "https://huggingface.co:443";
  const Url host = url.origin() == kDefaultOrigin ? hub : url;
  Url root = host;
  if (url.origin() != kDefaultOrigin) root.path = std::string(1, '/');
  std::string revision;
  if (TakePage("blob", names, revision) || TakePage("resolve", names, revision) ||
      TakePage("tree", names, revision)) {
    return InRepository(root, names, std::move(revision));
  }
  const bool is_file = absl::EndsWith(url.path, ".gguf");
  if (names.size() == 2 && !is_file && !absl::EndsWith(url.path, "/")) {
    std::tie(names[1], revision) = SplitRevision(names[1]);
    return InRepository(root, names, std::move(revision));
  }
  RemoteSource source;
  source.folder = url;
  if (is_file) {
    ATELIER_ASSIGN_OR_RETURN(source.gguf_file, UnescapeSegment(names.back()));
    names.pop_back();
  }
  ATELIER_ASSIGN_OR_RETURN(source.name, UnescapeSegment(names.empty() ? "model" : names.back()));
  source.folder.path = FolderPath(names);
  return source;
}

}  // namespace

Url RemoteSource::FileUrl(absl::string_view file) const {
  Url url = folder;
  absl::StrAppend(&url.path, EscapeSegment(file));
  return url;
}

RemoteSource RemoteSource::AtRevision(absl::string_view commit) const {
  RemoteSource pinned = *this;
  const std::string from = absl::StrCat("/resolve/", revision, "/");
  const size_t at = pinned.folder.path.rfind(from);
  if (at == std::string::npos) return pinned;
  pinned.folder.path.replace(at, from.size(), absl::StrCat("/resolve/", commit, "/"));
  pinned.revision = std::string(commit);
  return pinned;
}

absl::StatusOr<RemoteSource> ParseRemoteSource(absl::string_view text, absl::string_view hub) {
  ATELIER_ASSIGN_OR_RETURN(const Url hub_url, ParseUrl(hub));
  absl::StatusOr<RemoteSource> source =
      absl::StartsWith(text, kHubScheme) ? ParseHubName(text, hub_url) : ParseWebUrl(text, hub_url);
  ATELIER_RETURN_IF_ERROR(source.status());
  ATELIER_RETURN_IF_ERROR(CheckFile(text, *source));
  source->spelled = std::string(text);
  return source;
}

}  // namespace atelier
