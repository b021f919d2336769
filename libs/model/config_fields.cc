#include "libs/model/config_fields.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "libs/base/status_macros.h"
#include "libs/model/json_bounds.h"

namespace atelier {
namespace {

using nlohmann::json;

// Enough of a value to recognise it. Files may hold megabytes, and nest so deep that printing
// (which recurses) would overflow the stack.
std::string Shown(const json& value) {
  if (value.is_structured()) return absl::StrCat("(", value.type_name(), " of ", value.size(), ")");
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  constexpr size_t kMaxShown = 80;
  if (text.size() > kMaxShown) text = text.substr(0, kMaxShown) + "...";
  return text;
}

}  // namespace

ConfigFields::ConfigFields(const json& object, absl::string_view file)
    : object_(object), file_(file) {}

ConfigFields::Field ConfigFields::Lookup(Keys keys) const {
  for (absl::string_view key : keys) {
    const auto found = object_.find(std::string(key));
    if (found != object_.end() && !found->is_null()) return {key, &*found};
  }
  return {};
}

void ConfigFields::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

void ConfigFields::FailMissing(Keys keys) {
  Fail(absl::InvalidArgumentError(absl::StrCat(file_, ": required key ",
                                               absl::StrJoin(keys, " (or "),
                                               std::string(keys.size() - 1, ')'), " is missing")));
}

void ConfigFields::FailType(const Field& field, absl::string_view wanted) {
  Fail(absl::InvalidArgumentError(
      absl::StrCat(file_, ": ", field.key, "=", Shown(*field.value), " must be ", wanted)));
}

std::optional<int64_t> ConfigFields::Integer(absl::string_view key, const json& value,
                                             IntRange range) {
  if (!value.is_number_integer()) {
    FailType({key, &value}, "an integer");
    return std::nullopt;
  }
  // An unsigned value above the int64 range would turn negative in get<int64_t>().
  const bool fits =
      !value.is_number_unsigned() || value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
  const int64_t number = fits ? value.get<int64_t>() : INT64_MAX;
  if (number < range.min || number > range.max) {
    FailType({key, &value}, absl::StrCat("from ", range.min, " to ", range.max));
    return std::nullopt;
  }
  return number;
}

std::optional<double> ConfigFields::Number(const Field& field, DoubleRange range) {
  if (!field.value->is_number()) {
    FailType(field, "a number");
    return std::nullopt;
  }
  const double number = field.value->get<double>();
  if (!(number >= range.min && number <= range.max)) {
    FailType(field, absl::StrCat("from ", range.min, " to ", range.max));
    return std::nullopt;
  }
  return number;
}

int ConfigFields::RequireInt(Keys keys, IntRange range) {
  if (!Has(keys)) FailMissing(keys);
  return Int(keys, range, static_cast<int>(range.min));
}

int64_t ConfigFields::Int64(Keys keys, IntRange range, int64_t fallback) {
  const Field field = Lookup(keys);
  if (field.value == nullptr) return fallback;
  return Integer(field.key, *field.value, range).value_or(fallback);
}

int ConfigFields::Int(Keys keys, IntRange range, int fallback) {
  const Field field = Lookup(keys);
  if (field.value == nullptr) return fallback;
  return static_cast<int>(Integer(field.key, *field.value, range).value_or(fallback));
}

double ConfigFields::RequireDouble(Keys keys, DoubleRange range) {
  if (!Has(keys)) FailMissing(keys);
  return Double(keys, range, range.min);
}

double ConfigFields::Double(Keys keys, DoubleRange range, double fallback) {
  const Field field = Lookup(keys);
  if (field.value == nullptr) return fallback;
  return Number(field, range).value_or(fallback);
}

bool ConfigFields::Bool(Keys keys, bool fallback) {
  const Field field = Lookup(keys);
  if (field.value == nullptr) return fallback;
  if (field.value->is_boolean()) return field.value->get<bool>();
  FailType(field, "true or false");
  return fallback;
}

std::string ConfigFields::String(Keys keys, absl::string_view fallback) {
  const Field field = Lookup(keys);
  if (field.value == nullptr) return std::string(fallback);
  if (field.value->is_string()) return field.value->get<std::string>();
  FailType(field, "a string");
  return std::string(fallback);
}

std::vector<std::string> ConfigFields::Strings(Keys keys) {
  const Field field = Lookup(keys);
  if (field.value == nullptr) return {};
  std::vector<std::string> strings;
  for (const json& item : *field.value) {
    if (item.is_string()) strings.push_back(item.get<std::string>());
  }
  if (!field.value->is_array() || strings.size() != field.value->size()) {
    FailType(field, "a list of strings");
    return {};
  }
  return strings;
}

std::vector<int64_t> ConfigFields::Ints(Keys keys, IntRange range) {
  const Field field = Lookup(keys);
  if (field.value == nullptr) return {};
  if (!field.value->is_array()) {
    FailType(field, "a list of integers");
    return {};
  }
  std::vector<int64_t> numbers;
  for (const json& item : *field.value) {
    const std::optional<int64_t> number = Integer(field.key, item, range);
    if (!number.has_value()) return {};
    numbers.push_back(*number);
  }
  return numbers;
}

std::vector<int64_t> ConfigFields::IntOrInts(Keys keys, IntRange range) {
  const Field field = Lookup(keys);
  if (field.value == nullptr) return {};
  if (field.value->is_array()) return Ints(keys, range);
  const std::optional<int64_t> number = Integer(field.key, *field.value, range);
  return number.has_value() ? std::vector<int64_t>{*number} : std::vector<int64_t>{};
}

const json* ConfigFields::Object(Keys keys) {
  const Field field = Lookup(keys);
  if (field.value == nullptr || field.value->is_object()) return field.value;
  FailType(field, "an object");
  return nullptr;
}

absl::StatusOr<json> ParseJsonObject(absl::string_view text, absl::string_view file) {
  constexpr JsonLimits kLimits{.max_depth = 64, .max_token_bytes = size_t{1} << 20};
  ATELIER_RETURN_IF_ERROR(CheckJsonBounds(text, kLimits, file));
  json value;
  try {  // the parser reports the place of an error only by throwing
    value = json::parse(text.begin(), text.end());
  } catch (const json::exception& error) {
    const auto* parse_error = dynamic_cast<const json::parse_error*>(&error);
    return absl::InvalidArgumentError(
        absl::StrCat(file, " is not valid JSON",
                     parse_error == nullptr ? "" : absl::StrCat(" at byte ", parse_error->byte)));
  }
  if (!value.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, " holds ", value.type_name(), " instead of a JSON object"));
  }
  return value;
}

}  // namespace atelier
