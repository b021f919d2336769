#pragma once

#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "libs/base/log.h"
#include "libs/transport/security.h"

namespace atelier {

// PEM texts, or the paths of files of them; empty = none.
struct TlsParts {
  std::string certificate, private_key, ca;

  bool operator==(const TlsParts& other) const {
    return certificate == other.certificate && private_key == other.private_key && ca == other.ca;
  }
};

inline TlsParts PathsOf(const ServerSecurity& s) {
  return {s.certificate, s.private_key, s.client_ca};
}
inline TlsParts PathsOf(const ClientSecurity& s) { return {s.certificate, s.private_key, s.ca}; }

// The texts of the files, which fit each other and today; errors as CheckFiles.
absl::StatusOr<TlsParts> ReadTlsParts(const TlsParts& paths);

// The files of one side of connections that rotate while it runs: what is broken, half written or
// half replaced is logged (tls_files_rejected, once) and changes nothing. Thread-safe.
class TlsFiles {
 public:
  struct Texts {
    TlsParts parts;  // the last good ones; all empty where there were none yet
    bool changed;    // since the last call
  };

  // `logger` must outlive this.
  TlsFiles(TlsParts paths, const Logger& logger) : paths_(std::move(paths)), logger_(logger) {}

  Texts Read();

 private:
  const TlsParts paths_;
  const Logger& logger_;
  absl::Mutex mutex_;
  TlsParts good_ ABSL_GUARDED_BY(mutex_);
  std::string complaint_ ABSL_GUARDED_BY(mutex_);  // the last one, while it lasts
};

// Likewise of tokens (token_file_rejected).
class TokenFile {
 public:
  TokenFile(std::string path, const Logger& logger) : path_(std::move(path)), logger_(logger) {}

  // The last good ones.
  std::vector<std::string> Read();

 private:
  const std::string path_;
  const Logger& logger_;
  absl::Mutex mutex_;
  std::vector<std::string> good_ ABSL_GUARDED_BY(mutex_);
  std::string complaint_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace atelier
