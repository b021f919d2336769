#include "tools/atelier/fetch/remote_file.h"

#include "absl/strings/str_cat.h"
#include "libs/base/quoted.h"

namespace atelier {

std::optional<uint64_t> RemoteFile::size() const {
  const absl::MutexLock lock(&mutex_);
  return size_;
}

std::string RemoteFile::etag() const {
  const absl::MutexLock lock(&mutex_);
  return etag_;
}

std::optional<Url> RemoteFile::direct_url() const {
  const absl::MutexLock lock(&mutex_);
  return direct_;
}

void RemoteFile::ForgetDirectUrl() {
  const absl::MutexLock lock(&mutex_);
  direct_.reset();
}

absl::Status RemoteFile::Accept(const Answer& answer, uint64_t size) {
  const std::string validator = answer.head.Validator();
  const absl::MutexLock lock(&mutex_);
  // A hub names the content before it redirects; who is asked directly names it another way.
  const bool direct = direct_ && answer.linked_etag.empty() && answer.url.text() == direct_->text();
  const std::string& etag = answer.linked_etag.empty() ? validator : answer.linked_etag;
  const std::string& expected = direct ? direct_etag_ : etag_;
  if (size_ && (size != *size_ || etag != expected)) {
    return absl::AbortedError(
        absl::StrCat(PlaceOf(url_), " changed on the server while it was fetched (", *size_,
                     " bytes, etag ", Quoted(expected), "; now ", size, " bytes, etag ",
                     Quoted(etag), "): run this again to fetch the new one"));
  }
  if (!size_) {
    size_ = size;
    etag_ = etag;
  }
  if (!direct && answer.url.text() != url_.text()) {
    direct_ = answer.url;
    direct_etag_ = validator;
  }
  return absl::OkStatus();
}

}  // namespace atelier
