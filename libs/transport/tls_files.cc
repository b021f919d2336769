#include "libs/transport/tls_files.h"

#include <utility>

#include "libs/transport/token_file.h"

namespace atelier {
namespace {

// Said once, not for every connection that comes meanwhile.
void Complain(const Logger& logger, const char* event, const absl::Status& status,
              std::string& complaint) {
  if (complaint == status.message()) return;
  complaint = std::string(status.message());
  logger.Warning(event, {Kv("reason", complaint), Kv("until_mended", "the last good ones count")});
}

}  // namespace

TlsFiles::Texts TlsFiles::Read() {
  absl::StatusOr<TlsParts> parts = ReadTlsParts(paths_);
  absl::MutexLock lock(&mutex_);
  if (!parts.ok()) {
    Complain(logger_, "tls_files_rejected", parts.status(), complaint_);
    return {good_, false};
  }
  complaint_.clear();
  if (*parts == good_) return {good_, false};
  const bool first = good_ == TlsParts();
  good_ = *std::move(parts);
  if (!first) logger_.Info("tls_files_taken", {Kv("certificate", paths_.certificate)});
  return {good_, true};
}

std::vector<std::string> TokenFile::Read() {
  absl::StatusOr<std::vector<std::string>> tokens = ReadTokens(path_);
  absl::MutexLock lock(&mutex_);
  if (tokens.ok()) {
    complaint_.clear();
    good_ = *std::move(tokens);
  } else {
    Complain(logger_, "token_file_rejected", tokens.status(), complaint_);
  }
  return good_;
}

}  // namespace atelier
