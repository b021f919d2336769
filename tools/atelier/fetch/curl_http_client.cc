#include "tools/atelier/fetch/curl_http_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "libs/base/check.h"

namespace atelier {
namespace {

constexpr size_t kMaxHeaderBytes = size_t{64} << 10;  // of an answer
constexpr long kBufferBytes = 256L << 10;

struct HandleDeleter {
  void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
};
struct ListDeleter {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using HeaderList = std::unique_ptr<curl_slist, ListDeleter>;

void AddHeader(HeaderList& list, const std::string& line) {
  list.reset(curl_slist_append(list.release(), line.c_str()));
}

// One exchange, as libcurl's callbacks fill it in.
struct Exchange {
  CURL* handle = nullptr;
  HttpBody* body = nullptr;
  HttpHead head;
  size_t header_bytes = 0;
  bool begun = false;
  absl::Status status;  // of the body, or for headers that are too long

  // What a callback returns for `size` bytes.
  size_t Taken(size_t size, absl::Status result) {
    status.Update(std::move(result));
    return status.ok() ? size : 0;
  }

  absl::Status BeginOnce() {
    if (std::exchange(begun, true)) return absl::OkStatus();
    return body->Begin(head);
  }

  absl::Status AddLine(absl::string_view line) {
    header_bytes += line.size();
    if (header_bytes > kMaxHeaderBytes) {
      return absl::UnavailableError(
          absl::StrCat("the answer has more than ", kMaxHeaderBytes, " bytes of headers"));
    }
    line = absl::StripAsciiWhitespace(line);
    if (absl::StartsWith(line, "HTTP/")) {
      head = {};  // an interim answer came before
      return absl::OkStatus();
    }
    if (line.empty()) {
      long code = 0;
      curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &code);
      head.status = static_cast<int>(code);
      return head.status >= 200 && !begun ? BeginOnce() : absl::OkStatus();
    }
    const size_t colon = line.find(':');
    if (colon == absl::string_view::npos) return absl::OkStatus();
    head.headers[absl::AsciiStrToLower(line.substr(0, colon))] =
        std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
    return absl::OkStatus();
  }
};

size_t OnHeader(const char* data, size_t size, size_t count, void* exchange) {
  auto& to = *static_cast<Exchange*>(exchange);
  return to.Taken(size * count, to.AddLine({data, size * count}));
}

size_t OnBody(const char* data, size_t size, size_t count, void* exchange) {
  auto& to = *static_cast<Exchange*>(exchange);
  const auto* bytes = reinterpret_cast<const uint8_t*>(data);
  return to.Taken(size * count, to.body->Write({bytes, size * count}));
}

absl::Status StatusOf(CURLcode code, const HttpRequest& request, const char* detail) {
  // The query of a URL that was redirected to may be a secret.
  const std::string place = request.url.substr(0, request.url.find('?'));
  const std::string message =
      absl::StrCat(place, ": ", *detail == '\0' ? curl_easy_strerror(code) : detail);
  switch (code) {
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
      return absl::InvalidArgumentError(message);
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
      return absl::FailedPreconditionError(message);
    default:
      return absl::UnavailableError(message);
  }
}

class CurlHttpClient final : public HttpClient {
 public:
  explicit CurlHttpClient(const CurlOptions& options)
      : options_(options), handle_(curl_easy_init()) {
    ATELIER_CHECK(handle_ != nullptr);
  }

  absl::StatusOr<HttpHead> Get(const HttpRequest& request, HttpBody& body) override {
    Exchange exchange;
    exchange.handle = handle_.get();
    exchange.body = &body;
    char detail[CURL_ERROR_SIZE] = "";
    HeaderList headers = Headers(request);
    SetTransport(detail);
    Set(CURLOPT_URL, request.url.c_str());
    Set(CURLOPT_HTTPHEADER, headers.get());
    Set(CURLOPT_HEADERFUNCTION, &OnHeader);
    Set(CURLOPT_HEADERDATA, &exchange);
    Set(CURLOPT_WRITEFUNCTION, &OnBody);
    Set(CURLOPT_WRITEDATA, &exchange);
    const CURLcode code = curl_easy_perform(handle_.get());
    if (!exchange.status.ok()) return exchange.status;
    if (code != CURLE_OK) return StatusOf(code, request, detail);
    const absl::Status begun = exchange.BeginOnce();
    if (!begun.ok()) return begun;
    return std::move(exchange.head);
  }

 private:
  template <typename T>
  void Set(CURLoption option, T value) {
    ATELIER_CHECK(curl_easy_setopt(handle_.get(), option, value) == CURLE_OK);
  }

  static HeaderList Headers(const HttpRequest& request) {
    HeaderList headers;
    AddHeader(headers, "Accept-Encoding: identity");
    if (request.range) {
      AddHeader(headers,
                absl::StrCat("Range: bytes=", request.range->begin, "-", request.range->end - 1));
    }
    if (!request.if_none_match.empty()) {
      AddHeader(headers, absl::StrCat("If-None-Match: ", request.if_none_match));
    }
    if (!request.bearer_token.empty()) {
      AddHeader(headers, absl::StrCat("Authorization: Bearer ", request.bearer_token));
    }
    return headers;
  }

  // Everything anew for each exchange: the handle keeps its connections, not its options.
  void SetTransport(char* detail) {
    curl_easy_reset(handle_.get());
    Set(CURLOPT_ERRORBUFFER, detail);
    Set(CURLOPT_NOSIGNAL, 1L);
    Set(CURLOPT_PROTOCOLS_STR, "http,https");
    Set(CURLOPT_FOLLOWLOCATION, 0L);
    // Ranges in parallel are to have connections of their own.
    Set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    Set(CURLOPT_USERAGENT, options_.user_agent.c_str());
    Set(CURLOPT_BUFFERSIZE, kBufferBytes);
    Set(CURLOPT_CONNECTTIMEOUT_MS,
        static_cast<long>(absl::ToInt64Milliseconds(options_.connect_timeout)));
    Set(CURLOPT_LOW_SPEED_LIMIT, 1L);
    Set(CURLOPT_LOW_SPEED_TIME,
        std::max(1L, static_cast<long>(absl::ToInt64Seconds(options_.stall_timeout))));
  }

  const CurlOptions options_;
  const std::unique_ptr<CURL, HandleDeleter> handle_;
};

}  // namespace

CurlLibrary::CurlLibrary() { ATELIER_CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK); }
CurlLibrary::~CurlLibrary() { curl_global_cleanup(); }

std::unique_ptr<HttpClient> CreateCurlHttpClient(const CurlOptions& options) {
  return std::make_unique<CurlHttpClient>(options);
}

}  // namespace atelier
