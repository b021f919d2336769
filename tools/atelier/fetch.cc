#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "libs/base/clock.h"
#include "libs/base/command_line.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/checkpoint.h"
#include "tools/atelier/command.h"
#include "tools/atelier/fetch/checkpoint_fetcher.h"
#include "tools/atelier/fetch/web_flags.h"
#include "tools/atelier/role_flags.h"
#include "tools/atelier/terminal_progress.h"

namespace atelier {
namespace {

struct FetchFlags {
  std::string url;
  RoleFlags role;
  std::string dir;
  int64_t max_gap = int64_t{256} << 10;
  WebFlags web;
};

constexpr char kUsage[] =
    "usage: atelier fetch URL --role=frontend|worker|all [flags]\n\n"
    "Downloads of a published checkpoint only the bytes that a process needs, into sparse files "
    "of\n"
    "the same names, which workers, frontends and the other commands read as they are. A worker\n"
    "gets its experts: of gate and up the rows of its slice, of down all rows (a slice is a piece\n"
    "of each); a frontend all but the routed experts. Config, index and tokenizer come whole.\n\n"
    "URL is https://HOST/ORG/NAME[@REVISION] of a model hub, hf://ORG/NAME[@REVISION], the URL of "
    "a\n"
    "folder with / at its end, or of a .gguf file (of a split set the first one). Beside each "
    "file\n"
    "NAME a journal NAME.fetch says what has come: keep the two together. Run the same command\n"
    "again after an interruption, a full disk or a kill, or with another role or shard into the\n"
    "same folder: what is there and unchanged on the server is kept.\n\n"
    "examples:\n"
    "  atelier fetch hf://Qwen/Qwen3-30B-A3B --role=frontend --dir=/models/qwen\n"
    "  atelier fetch https://huggingface.co/Qwen/Qwen3-30B-A3B@main --role=worker \\\n"
    "                --shard-slice=1/2 --dir=/models/qwen\n"
    "  atelier fetch http://10.0.0.5/models/GLM-4.5-Air/ --role=worker --experts=0-63\n"
    "  HF_TOKEN=… atelier fetch hf://ORG/GATED --role=all\n"
    "  atelier fetch https://huggingface.co/ORG/NAME/resolve/main/m-Q4_K_M.gguf --role=all\n\n"
    "exit status: 0 all that the role needs is there, 1 it is not (with the reason; what has come\n"
    "is kept), 2 bad usage.";

FlagSection WhatSection(FetchFlags* flags) {
  FlagSection section{
      "What", RoleFlagSpecs("What will run on the files; all = a frontend and the worker that the "
                            "flags below say. Required.",
                            &flags->role)};
  section.flags.push_back(StringFlag(
      "dir", "FOLDER",
      "Where the files go; created if its parent exists. Default: the model's name.", &flags->dir));
  return section;
}

FlagTable TableOf(FetchFlags* flags) {
  return FlagTable(
      kUsage,
      {WhatSection(flags),
       {"How",
        {BytesFlag("max-gap",
                   "Ranges that are closer together come by one request, with what is between "
                   "them.",
                   &flags->max_gap)}},
       WebFlagSection(&flags->web)});
}

absl::Status Validate(const FetchFlags& flags) {
  if (flags.url.empty()) {
    return absl::InvalidArgumentError("URL is missing: atelier fetch URL --role=ROLE");
  }
  if (flags.role.role.empty()) {
    return absl::InvalidArgumentError("--role is required: frontend, worker or all");
  }
  ATELIER_RETURN_IF_ERROR(ParseRemoteSource(flags.url, flags.web.hub).status());
  return ValidateRole(flags.role);
}

// Two fetches into one folder would write each other's journals.
class FolderLock {
 public:
  static absl::StatusOr<FolderLock> Take(const std::string& folder) {
    if (::mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot create --dir=", folder));
    }
    FolderLock lock;
    lock.fd_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock.fd_ < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open --dir=", folder));
    if (::flock(lock.fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      return absl::UnavailableError(
          absl::StrCat("another atelier fetch writes to --dir=", folder, " just now"));
    }
    return lock;
  }
  FolderLock(FolderLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FolderLock& operator=(FolderLock&&) = delete;
  ~FolderLock() {
    if (fd_ >= 0) ::close(fd_);
  }

 private:
  FolderLock() = default;

  int fd_ = -1;
};

absl::StatusOr<FileBytes> WantedBytes(const RoleFlags& role, const Checkpoint& checkpoint) {
  FileBytes wanted;
  if (role.frontend()) {
    ATELIER_ASSIGN_OR_RETURN(wanted, BytesOfFrontend(checkpoint));
  }
  if (role.worker()) {
    ATELIER_ASSIGN_OR_RETURN(const FileBytes bytes, BytesOfWorker(role, checkpoint));
    Add(bytes, wanted);
  }
  return wanted;
}

uint64_t PublishedBytes(const Checkpoint& checkpoint) {
  uint64_t bytes = 0;
  for (const CheckpointFile& file : checkpoint.Files()) bytes += file.bytes.size();
  return bytes;
}

std::string ForPeople(uint64_t bytes) { return FormatBytes(static_cast<int64_t>(bytes)); }

absl::Status Fetch(const FetchFlags& flags) {
  FetcherOptions options;
  ATELIER_ASSIGN_OR_RETURN(options.source, ParseRemoteSource(flags.url, flags.web.hub));
  options.directory = flags.dir.empty() ? options.source.name : flags.dir;
  options.tokenizer = flags.role.frontend();
  options.max_gap = static_cast<uint64_t>(flags.max_gap);
  ApplyWebFlags(flags.web, options);
  ATELIER_ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::Take(options.directory));
  SystemClock clock;
  const absl::Time start = clock.Now();
  std::atomic<TerminalProgress*> progress = nullptr;
  options.on_bytes = [&progress](uint64_t bytes) {
    if (TerminalProgress* to = progress.load()) to->Add(static_cast<int64_t>(bytes), false);
  };
  const CurlLibrary library;
  CheckpointFetcher fetcher(std::move(options));
  ATELIER_RETURN_IF_ERROR(fetcher.FetchHeaders());
  for (const std::string& note : fetcher.notes()) std::cout << note << "\n";
  ATELIER_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(fetcher.checkpoint_path()));
  ATELIER_ASSIGN_OR_RETURN(const FileBytes wanted, WantedBytes(flags.role, *checkpoint));
  ATELIER_ASSIGN_OR_RETURN(const FetchTotals totals, fetcher.Missing(wanted));
  std::cout << fetcher.checkpoint_path() << ": " << flags.role.role << " needs "
            << ForPeople(totals.wanted) << " of " << ForPeople(PublishedBytes(*checkpoint)) << "; "
            << ForPeople(totals.missing) << " to be fetched" << std::endl;
  TerminalProgress shown(static_cast<int64_t>(totals.missing), clock);
  progress = &shown;
  const absl::Status fetched = fetcher.FetchBytes(wanted);
  progress = nullptr;
  shown.Clear();
  ATELIER_RETURN_IF_ERROR(fetched);
  std::cout << absl::StrFormat("done in %.1f s", absl::ToDoubleSeconds(clock.Now() - start))
            << std::endl;
  return absl::OkStatus();
}

}  // namespace

int RunFetch(int argc, const char* const* argv) {
  FetchFlags flags;
  const FlagTable table = TableOf(&flags);
  std::vector<const char*> arguments(argv, argv + argc);
  flags.url = TakeOperand(arguments);
  if (const auto status =
          AnswerCommandLine("atelier fetch", table, static_cast<int>(arguments.size()),
                            arguments.data(), [&flags] { return Validate(flags); })) {
    return *status;
  }
  const absl::Status fetched = Fetch(flags);
  if (fetched.ok()) return 0;
  std::cerr << "atelier fetch: " << fetched.message() << std::endl;
  return FailureExitStatus(fetched);
}

}  // namespace atelier
