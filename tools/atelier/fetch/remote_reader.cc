#include "tools/atelier/fetch/remote_reader.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/base/status_macros.h"

namespace atelier {
namespace {

// A place that was redirected to no longer answers for the file: such URLs expire.
bool HasExpired(int http_status) {
  return http_status == 400 || http_status == 401 || http_status == 403 || http_status == 404 ||
         http_status == 410;
}

}  // namespace

Retries::Attempt RemoteReader::Try(const HttpRequest& request, ReaderBody& body, Answer& answer) {
  Retries::Attempt attempt;
  attempt.status = options_.stopped()
                       ? absl::CancelledError("stopped")
                       : GetFollowing(*client_, request, options_.credentials, body, answer);
  attempt.progressed = body.progressed();
  attempt.retry_after = RetryAfter(answer.head, options_.now());
  return attempt;
}

Retries::Attempt RemoteReader::TryRange(RemoteFile& file, ByteRange& left, ByteSink& sink) {
  const std::optional<Url> direct = file.direct_url();
  HttpRequest request;
  request.url = (direct ? *direct : file.url()).text();
  request.range = left;
  RangeBody body(options_.credentials, options_.stopped, file, left, sink);
  Answer answer;
  Retries::Attempt attempt = Try(request, body, answer);
  if (!attempt.status.ok() && direct && HasExpired(answer.head.status)) {
    file.ForgetDirectUrl();
    attempt.status = absl::UnavailableError(attempt.status.message());
  }
  if (attempt.status.ok() && left.size() > 0) {
    attempt.status = absl::UnavailableError(
        absl::StrCat(PlaceOf(file.url()), ": ends ", left.size(), " bytes early"));
  }
  return attempt;
}

absl::Status RemoteReader::ReadRange(RemoteFile& file, ByteRange range, ByteSink& sink) {
  if (range.size() == 0) return absl::OkStatus();
  return retries_.Run([&] { return TryRange(file, range, sink); });
}

absl::Status RemoteReader::ReadWhole(RemoteFile& file, ByteSink& sink) {
  return retries_.Run([&] {
    HttpRequest request;
    request.url = file.url().text();
    WholeBody body(options_.credentials, options_.stopped, file, sink);
    Answer answer;
    Retries::Attempt attempt = Try(request, body, answer);
    attempt.progressed = false;  // nothing of it helps the next one
    return attempt;
  });
}

absl::StatusOr<SmallFile> RemoteReader::ReadSmall(const Url& url, uint64_t max_bytes,
                                                  const std::string& etag) {
  SmallFile file;
  ATELIER_RETURN_IF_ERROR(retries_.Run([&] {
    HttpRequest request;
    request.url = url.text();
    request.if_none_match = etag;
    SmallBody body(options_.credentials, options_.stopped, max_bytes);
    Answer answer;
    Retries::Attempt attempt = Try(request, body, answer);
    attempt.progressed = false;
    file.not_modified = answer.head.status == 304;
    file.content = body.TakeContent();
    file.etag = answer.head.Validator();
    file.commit = answer.commit;
    return attempt;
  }));
  return file;
}

}  // namespace atelier
