#include "libs/checkpoint/json_stream.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/quoted_name.h"

namespace atelier {
namespace {

absl::Status Broken(const JsonReceiver& receiver, absl::string_view problem, size_t byte) {
  return absl::InvalidArgumentError(
      absl::StrCat(receiver.file(), ": ", problem, " at byte ", byte));
}

}  // namespace

bool JsonReceiver::number_integer(int64_t value) { return Unexpected(absl::StrCat(value)); }
bool JsonReceiver::number_unsigned(uint64_t value) { return Unexpected(absl::StrCat(value)); }
bool JsonReceiver::number_float(double value, const std::string& text) {
  (void)text;
  return Unexpected(absl::StrCat("the number ", value));
}
bool JsonReceiver::string(std::string& value) {
  return Unexpected(absl::StrCat("the string ", QuotedName(value)));
}
bool JsonReceiver::binary(nlohmann::json::binary_t& value) {
  (void)value;
  return Unexpected("binary data");
}
bool JsonReceiver::start_object(size_t size) {
  (void)size;
  return Unexpected("an object");
}
bool JsonReceiver::key(std::string& value) {
  return Unexpected(absl::StrCat("the key ", QuotedName(value)));
}
bool JsonReceiver::start_array(size_t size) {
  (void)size;
  return Unexpected("a list");
}

bool JsonReceiver::parse_error(size_t position, const std::string& token,
                               const nlohmann::json::exception& error) {
  (void)token;
  (void)error;
  status_ = Broken(*this, "not valid JSON", position);
  return false;
}

bool JsonReceiver::Unexpected(absl::string_view what) {
  return Fail(absl::StrCat("unexpected ", what));
}

bool JsonReceiver::Fail(absl::string_view message, absl::StatusCode code) {
  const std::string place = Place();
  status_ =
      absl::Status(code, absl::StrCat(file_, ": ", place, place.empty() ? "" : ": ", message));
  return false;
}

absl::Status ReadJson(absl::string_view text, const JsonLimits& limits, JsonReceiver& receiver) {
  text = absl::StripTrailingAsciiWhitespace(text);  // padding may be of any length
  ATELIER_RETURN_IF_ERROR(CheckJsonBounds(text, limits, receiver.file()));
  const bool complete = nlohmann::json::sax_parse(text.begin(), text.end(), &receiver);
  ATELIER_RETURN_IF_ERROR(receiver.status());
  return complete ? absl::OkStatus() : Broken(receiver, "not valid JSON", text.size());
}

}  // namespace atelier
