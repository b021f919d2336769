#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "tools/atelier/fetch/exchange.h"

namespace atelier {

// A file on a server, and which content of it is being read: the first answer decides, others must
// agree. Thread-safe.
class RemoteFile {
 public:
  RemoteFile(std::string name, Url url) : name_(std::move(name)), url_(std::move(url)) {}

  const std::string& name() const { return name_; }
  const Url& url() const { return url_; }
  // Of the content; unset before the first answer. The etag is empty where the server names none.
  std::optional<uint64_t> size() const;
  std::string etag() const;

  // ABORTED unless the answer is about the same content as the first one. `size` as it says.
  absl::Status Accept(const Answer& answer, uint64_t size);
  // Where redirects led, to be asked directly: hubs count what they redirect. Nothing for a file
  // that was not redirected.
  std::optional<Url> direct_url() const;
  void ForgetDirectUrl();

 private:
  const std::string name_;
  const Url url_;
  mutable absl::Mutex mutex_;
  std::optional<uint64_t> size_ ABSL_GUARDED_BY(mutex_);
  std::string etag_ ABSL_GUARDED_BY(mutex_);
  std::optional<Url> direct_ ABSL_GUARDED_BY(mutex_);
  std::string direct_etag_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace atelier
