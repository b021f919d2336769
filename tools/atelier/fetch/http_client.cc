#include "tools/atelier/fetch/http_client.h"

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"

namespace atelier {

absl::string_view HttpHead::Header(absl::string_view name) const {
  const auto found = headers.find(std::string(name));
  return found == headers.end() ? absl::string_view() : absl::string_view(found->second);
}

std::optional<uint64_t> HttpHead::ContentLength() const {
  uint64_t length = 0;
  if (!absl::SimpleAtoi(Header("content-length"), &length)) return std::nullopt;
  return length;
}

std::optional<ContentRange> HttpHead::Range() const {
  absl::string_view text = Header("content-range");  // "bytes 0-99/1000", "bytes 0-99/*"
  const size_t dash = text.find('-'), slash = text.find('/');
  if (!absl::ConsumePrefix(&text, "bytes ") || dash == absl::string_view::npos ||
      slash == absl::string_view::npos || slash < dash) {
    return std::nullopt;
  }
  constexpr size_t kPrefix = 6;  // "bytes "
  ContentRange parsed;
  uint64_t last = 0, total = 0;
  if (!absl::SimpleAtoi(text.substr(0, dash - kPrefix), &parsed.range.begin) ||
      !absl::SimpleAtoi(text.substr(dash + 1 - kPrefix, slash - dash - 1), &last) ||
      last == UINT64_MAX || last < parsed.range.begin) {
    return std::nullopt;
  }
  parsed.range.end = last + 1;
  const absl::string_view whole = text.substr(slash + 1 - kPrefix);
  if (whole == "*") return parsed;
  if (!absl::SimpleAtoi(whole, &total) || total < parsed.range.end) return std::nullopt;
  parsed.total = total;
  return parsed;
}

std::string HttpHead::Validator() const {
  const absl::string_view etag = Header("etag");
  return std::string(etag.empty() ? Header("last-modified") : etag);
}

}  // namespace atelier
