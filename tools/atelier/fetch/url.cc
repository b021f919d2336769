#include "tools/atelier/fetch/url.h"

#include <arpa/inet.h>
#include <curl/curl.h>

#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "libs/base/quoted.h"

namespace atelier {
namespace {

constexpr size_t kMaxUrlBytes = size_t{16} << 10;

struct HandleDeleter {
  void operator()(CURLU* handle) const { curl_url_cleanup(handle); }
};
using Handle = std::unique_ptr<CURLU, HandleDeleter>;

std::string Part(CURLU* handle, CURLUPart part, unsigned flags = 0) {
  char* text = nullptr;
  std::string value;
  if (curl_url_get(handle, part, &text, flags) == CURLUE_OK) value = text;
  curl_free(text);
  return value;
}

bool Has(CURLU* handle, CURLUPart part) {
  char* text = nullptr;
  const bool has = curl_url_get(handle, part, &text, 0) == CURLUE_OK;
  curl_free(text);
  return has;
}

absl::Status Refuse(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(Quoted(text), " ", why));
}

// Parsed over what the handle has already, if anything.
absl::StatusOr<Url> ParseInto(CURLU* handle, absl::string_view text) {
  if (text.size() > kMaxUrlBytes) return Refuse(text, "is too long for a URL");
  if (curl_url_set(handle, CURLUPART_URL, std::string(text).c_str(), 0) != CURLUE_OK) {
    return Refuse(text, "is no URL");
  }
  Url url;
  url.scheme = absl::AsciiStrToLower(Part(handle, CURLUPART_SCHEME));
  if (url.scheme != "http" && url.scheme != "https") {
    return Refuse(text, "is neither an http nor an https URL");
  }
  if (Has(handle, CURLUPART_USER) || Has(handle, CURLUPART_PASSWORD)) {
    return Refuse(absl::StrCat(url.scheme, "://..."), "has a user name in it; use --token");
  }
  url.host = absl::AsciiStrToLower(Part(handle, CURLUPART_HOST));
  url.port = Part(handle, CURLUPART_PORT, CURLU_DEFAULT_PORT);
  url.path = Part(handle, CURLUPART_PATH);
  url.query = Part(handle, CURLUPART_QUERY);
  return url;
}

}  // namespace

std::string Url::origin() const { return absl::StrCat(scheme, "://", host, ":", port); }

std::string Url::text() const {
  const bool default_port = port == (scheme == "https" ? "443" : "80");
  return absl::StrCat(scheme, "://", host, default_port ? "" : absl::StrCat(":", port), path,
                      query.empty() ? "" : absl::StrCat("?", query));
}

bool Url::is_loopback() const {
  in_addr address = {};
  const bool is_ipv4 = ::inet_pton(AF_INET, host.c_str(), &address) == 1;
  return host == "localhost" || host == "[::1]" || (is_ipv4 && absl::StartsWith(host, "127."));
}

absl::StatusOr<Url> ParseUrl(absl::string_view text) {
  const Handle handle(curl_url());
  return ParseInto(handle.get(), text);
}

absl::StatusOr<Url> ResolveUrl(const Url& base, absl::string_view location) {
  const Handle handle(curl_url());
  const absl::StatusOr<Url> parsed = ParseInto(handle.get(), base.text());
  if (!parsed.ok()) return parsed;
  return ParseInto(handle.get(), location);
}

std::string EscapeSegment(absl::string_view name) {
  std::string escaped;
  for (const char c : name) {
    const bool plain = absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                       absl::StrContains("-._~", absl::string_view(&c, 1));
    if (plain) {
      escaped += c;
    } else {
      absl::StrAppend(&escaped, "%",
                      absl::AsciiStrToUpper(
                          absl::StrCat(absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2))));
    }
  }
  return escaped;
}

absl::StatusOr<std::string> UnescapeSegment(absl::string_view segment) {
  std::string name;
  for (size_t i = 0; i < segment.size(); ++i) {
    const bool escaped = segment[i] == '%' && i + 2 < segment.size() &&
                         absl::ascii_isxdigit(static_cast<unsigned char>(segment[i + 1])) &&
                         absl::ascii_isxdigit(static_cast<unsigned char>(segment[i + 2]));
    name += escaped ? absl::HexStringToBytes(segment.substr(i + 1, 2))[0] : segment[i];
    if (escaped) i += 2;
  }
  const bool plain = !name.empty() && name != "." && name != ".." &&
                     name.find_first_of(std::string("/\\\0", 3)) == std::string::npos;
  if (plain) return name;
  return Refuse(segment, "cannot be the name of a file");
}

}  // namespace atelier
