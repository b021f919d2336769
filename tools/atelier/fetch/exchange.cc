#include "tools/atelier/fetch/exchange.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "libs/base/status_macros.h"

namespace atelier {
namespace {

constexpr int kMaxRedirects = 10;

bool IsRedirect(const HttpHead& head) {
  constexpr int kStatuses[] = {301, 302, 303, 307, 308};
  return std::find(std::begin(kStatuses), std::end(kStatuses), head.status) !=
             std::end(kStatuses) &&
         !head.Header("location").empty();
}

// Notes what each hop says, and keeps the body of a redirect, a page for people, from who waits for
// the file.
class HopBody final : public HttpBody {
 public:
  HopBody(Answer& answer, AnswerBody& body) : answer_(answer), body_(body) {}

  absl::Status Begin(const HttpHead& head) override {
    answer_.head = head;
    Note("x-linked-etag", answer_.linked_etag);
    Note("x-repo-commit", answer_.commit);
    dropped_ = IsRedirect(head);
    return dropped_ ? absl::OkStatus() : body_.Begin(answer_);
  }
  absl::Status Write(absl::Span<const uint8_t> bytes) override {
    return dropped_ ? absl::OkStatus() : body_.Write(bytes);
  }

 private:
  void Note(absl::string_view header, std::string& to) {
    if (to.empty()) to = std::string(answer_.head.Header(header));
  }

  Answer& answer_;
  AnswerBody& body_;
  bool dropped_ = false;
};

absl::StatusOr<Url> FollowingUrl(const Url& from, const HttpHead& head) {
  absl::StatusOr<Url> to = ResolveUrl(from, head.Header("location"));
  if (!to.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        PlaceOf(from), " redirects to what is no URL of a file: ", to.status().message()));
  }
  if (from.scheme == "https" && to->scheme == "http") {
    return absl::FailedPreconditionError(absl::StrCat(PlaceOf(from), " redirects to ", to->origin(),
                                                      ", which is not encrypted: not followed"));
  }
  return to;
}

}  // namespace

std::string PlaceOf(const Url& url) {
  Url shown = url;
  shown.query.clear();
  return shown.text();
}

std::string Credentials::TokenFor(const Url& url) const {
  const bool allowed = url.origin() == origin && (url.scheme == "https" || url.is_loopback());
  return allowed ? token : "";
}

absl::Status GetFollowing(HttpClient& client, const HttpRequest& request,
                          const Credentials& credentials, AnswerBody& body, Answer& answer) {
  answer = {};
  HopBody hop_body(answer, body);
  HttpRequest hop = request;
  ATELIER_ASSIGN_OR_RETURN(answer.url, ParseUrl(request.url));
  for (int redirects = 0; redirects <= kMaxRedirects; ++redirects) {
    hop.url = answer.url.text();
    hop.bearer_token = credentials.TokenFor(answer.url);
    ATELIER_ASSIGN_OR_RETURN(answer.head, client.Get(hop, hop_body));
    if (!IsRedirect(answer.head)) return absl::OkStatus();
    ATELIER_ASSIGN_OR_RETURN(answer.url, FollowingUrl(answer.url, answer.head));
  }
  return absl::FailedPreconditionError(
      absl::StrCat(request.url, " is redirected more than ", kMaxRedirects, " times"));
}

absl::Status StatusOf(const HttpHead& head, const Url& url, bool sent_token) {
  const std::string what = absl::StrCat(PlaceOf(url), ": status ", head.status, ": ");
  switch (head.status) {
    case 200:
    case 206:
    case 304:
      return absl::OkStatus();
    case 401:
      return absl::UnauthenticatedError(absl::StrCat(
          what, sent_token ? "the token is not accepted"
                           : "there is no such repository, or it needs a token: --token or "
                             "HF_TOKEN (which goes to the hub alone, over https)"));
    case 403:
      return absl::PermissionDeniedError(absl::StrCat(
          what, "this may not be read", sent_token ? " with this token" : " without a token",
          "; a gated model's conditions have to be accepted on its page"));
    case 404:
      return absl::NotFoundError(absl::StrCat(what, "there is no such file"));
    case 408:
    case 429:
      return absl::UnavailableError(absl::StrCat(what, "asked too much at once; fewer --jobs?"));
    default:
      break;
  }
  if (head.status >= 500) return absl::UnavailableError(absl::StrCat(what, "the server fails"));
  return absl::FailedPreconditionError(absl::StrCat(what, "not what a file's server says"));
}

bool IsRetryable(const absl::Status& status) { return absl::IsUnavailable(status); }

absl::Duration RetryAfter(const HttpHead& head, absl::Time now) {
  const std::string text(head.Header("retry-after"));
  int seconds = 0;
  if (absl::SimpleAtoi(text, &seconds)) return absl::Seconds(std::max(0, seconds));
  absl::Time time;
  std::string error;
  if (!absl::ParseTime("%a, %d %b %Y %H:%M:%S GMT", text, &time, &error)) {
    return absl::ZeroDuration();
  }
  return std::max(time - now, absl::ZeroDuration());
}

}  // namespace atelier
