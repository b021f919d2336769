#include "tools/atelier/fetch/reader_body.h"

#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "libs/base/status_macros.h"

namespace atelier {
namespace {

absl::Status Lie(const Url& url, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(PlaceOf(url), ": the server ", what));
}

absl::Status CheckEncoding(const Answer& answer) {
  const absl::string_view encoding = answer.head.Header("content-encoding");
  if (encoding.empty() || encoding == "identity") return absl::OkStatus();
  return Lie(answer.url, absl::StrCat("compresses (", encoding, ") what was asked for as it is"));
}

// A length that the end of the transfer can be checked against, or chunks, whose end is marked.
absl::Status CheckEndIsKnown(const Answer& answer) {
  const bool chunked = absl::StrContains(answer.head.Header("transfer-encoding"), "chunked");
  if (chunked || answer.head.ContentLength()) return absl::OkStatus();
  return Lie(answer.url,
             "does not say how long the file is, so that its end could not be told "
             "from a broken connection");
}

}  // namespace

absl::Status ReaderBody::Begin(const Answer& answer) {
  const bool sent_token = !credentials_.TokenFor(answer.url).empty();
  ATELIER_RETURN_IF_ERROR(StatusOf(answer.head, answer.url, sent_token));
  return answer.head.status == 304 ? absl::OkStatus() : Take(answer);
}

absl::Status ReaderBody::Write(absl::Span<const uint8_t> bytes) {
  if (stopped_()) return absl::CancelledError("stopped");
  progressed_ = progressed_ || !bytes.empty();
  return Add(bytes);
}

absl::Status RangeBody::Take(const Answer& answer) {
  if (answer.head.status == 200) {
    return absl::UnimplementedError(
        absl::StrCat(PlaceOf(file_.url()), ": the server sends whole files only, no ranges"));
  }
  ATELIER_RETURN_IF_ERROR(CheckEncoding(answer));
  const std::optional<ContentRange> range = answer.head.Range();
  const std::optional<uint64_t> total = range && range->total ? range->total : file_.size();
  if (!range || !total) return Lie(answer.url, "sends a part without saying which, of how much");
  ATELIER_RETURN_IF_ERROR(file_.Accept(answer, *total));
  const ByteRange expected{left_.begin, std::min(left_.end, *total)};
  if (range->range != expected) {
    return Lie(answer.url,
               absl::StrCat("was asked for bytes ", expected.begin, " to ", expected.end - 1,
                            " and sends ", range->range.begin, " to ", range->range.end - 1));
  }
  const std::optional<uint64_t> length = answer.head.ContentLength();
  if (length && *length != expected.size()) {
    return Lie(answer.url,
               absl::StrCat("announces ", *length, " bytes for a part of ", expected.size()));
  }
  left_ = expected;
  return absl::OkStatus();
}

absl::Status RangeBody::Add(absl::Span<const uint8_t> bytes) {
  if (bytes.size() > left_.size()) return Lie(file_.url(), "sends more than was asked for");
  ATELIER_RETURN_IF_ERROR(sink_.Write(left_.begin, bytes));
  left_.begin += bytes.size();
  return absl::OkStatus();
}

absl::Status WholeBody::Take(const Answer& answer) {
  ATELIER_RETURN_IF_ERROR(CheckEncoding(answer));
  const std::optional<uint64_t> length = answer.head.ContentLength();
  if (answer.head.status != 200 || !length) {
    return Lie(answer.url, "sends neither parts of a file nor a whole one with its length");
  }
  return file_.Accept(answer, *length);
}

absl::Status WholeBody::Add(absl::Span<const uint8_t> bytes) {
  ATELIER_RETURN_IF_ERROR(sink_.Write(next_, bytes));
  next_ += bytes.size();
  return absl::OkStatus();
}

absl::Status SmallBody::Take(const Answer& answer) {
  ATELIER_RETURN_IF_ERROR(CheckEncoding(answer));
  if (answer.head.status != 200) return Lie(answer.url, "sends a part of a whole file");
  return CheckEndIsKnown(answer);
}

absl::Status SmallBody::Add(absl::Span<const uint8_t> bytes) {
  if (bytes.size() > max_bytes_ - content_.size()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("more than the ", max_bytes_, " bytes that such a file may have"));
  }
  content_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return absl::OkStatus();
}

}  // namespace atelier
