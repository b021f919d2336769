#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/atelier/fetch/http_client.h"
#include "tools/atelier/fetch/url.h"

namespace atelier {

// What may be told to whom: the token goes to `origin` alone, wherever redirects lead.
struct Credentials {
  std::string token;  // empty = none
  std::string origin;

  // The token for a request there. Never over a wire that others can read.
  std::string TokenFor(const Url& url) const;
};

// How an exchange ended, redirects followed.
struct Answer {
  HttpHead head;  // the last one's
  Url url;        // that gave it
  // What a hub says of the file before it redirects to where the bytes are.
  std::string linked_etag;
  std::string commit;
};

// Takes the last answer, whatever its status; as HttpBody.
class AnswerBody {
 public:
  virtual ~AnswerBody() = default;
  virtual absl::Status Begin(const Answer& answer) = 0;
  virtual absl::Status Write(absl::Span<const uint8_t> bytes) = 0;
};

// Get, following redirects (at most 10, never from https to http). Errors of HttpClient and `body`,
// and FAILED_PRECONDITION for a redirect that is not followed; `answer` is what was seen until
// then.
absl::Status GetFollowing(HttpClient& client, const HttpRequest& request,
                          const Credentials& credentials, AnswerBody& body, Answer& answer);

// A URL for messages, without its query, which may be a secret.
std::string PlaceOf(const Url& url);

// OK for 200, 206 and 304; otherwise what the status means, naming the file, and what to do.
absl::Status StatusOf(const HttpHead& head, const Url& url, bool sent_token);

// Whether the same request may succeed later.
bool IsRetryable(const absl::Status& status);
// From Retry-After, in seconds or as a date; zero where there is none.
absl::Duration RetryAfter(const HttpHead& head, absl::Time now);

}  // namespace atelier
