#include "libs/model/gguf_metadata.h"

#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "libs/base/check.h"

namespace atelier {
namespace {

template <typename T>
T Load(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

template <typename T>
GgufValue IntegerAt(GgufValueType type, const uint8_t* at) {
  GgufValue value;
  value.type = type;
  value.integer = static_cast<int64_t>(Load<T>(at));
  return value;
}

template <typename T>
GgufValue FloatAt(GgufValueType type, const uint8_t* at) {
  GgufValue value;
  value.type = type;
  value.number = static_cast<double>(Load<T>(at));
  return value;
}

// Enough of a value to recognise it.
std::string Shown(const GgufValue& value) {
  constexpr size_t kMaxShown = 80;
  if (value.type == GgufValueType::kArray) return absl::StrCat("(array of ", value.count, ")");
  if (value.type == GgufValueType::kString) {
    const bool cut = value.text.size() > kMaxShown;
    return absl::StrCat("\"", absl::Utf8SafeCEscape(value.text.substr(0, kMaxShown)),
                        cut ? "..." : "", "\"");
  }
  if (value.type == GgufValueType::kBool) return value.integer != 0 ? "true" : "false";
  return value.IsInteger() ? absl::StrCat(value.integer) : absl::StrCat(value.number);
}

bool Equal(const GgufValue& a, const GgufValue& b) {
  return a.integer == b.integer && a.number == b.number && a.text == b.text;
}

}  // namespace

bool GgufValue::IsInteger() const {
  return GgufValueBytes(type) > 0 && type != GgufValueType::kBool && type != GgufValueType::kF32 &&
         type != GgufValueType::kF64;
}

size_t GgufValueBytes(GgufValueType type) {
  switch (type) {
    case GgufValueType::kU8:
    case GgufValueType::kI8:
    case GgufValueType::kBool:
      return 1;
    case GgufValueType::kU16:
    case GgufValueType::kI16:
      return 2;
    case GgufValueType::kU32:
    case GgufValueType::kI32:
    case GgufValueType::kF32:
      return 4;
    case GgufValueType::kU64:
    case GgufValueType::kI64:
    case GgufValueType::kF64:
      return 8;
    case GgufValueType::kString:
    case GgufValueType::kArray:
      return 0;
  }
  return 0;
}

GgufValue ReadGgufScalar(GgufValueType type, const uint8_t* at) {
  switch (type) {
    case GgufValueType::kU8:
    case GgufValueType::kBool:
      return IntegerAt<uint8_t>(type, at);
    case GgufValueType::kI8:
      return IntegerAt<int8_t>(type, at);
    case GgufValueType::kU16:
      return IntegerAt<uint16_t>(type, at);
    case GgufValueType::kI16:
      return IntegerAt<int16_t>(type, at);
    case GgufValueType::kU32:
      return IntegerAt<uint32_t>(type, at);
    case GgufValueType::kI32:
      return IntegerAt<int32_t>(type, at);
    case GgufValueType::kF32:
      return FloatAt<float>(type, at);
    case GgufValueType::kF64:
      return FloatAt<double>(type, at);
    case GgufValueType::kI64:
      return IntegerAt<int64_t>(type, at);
    case GgufValueType::kU64: {
      GgufValue value = IntegerAt<uint64_t>(type, at);
      if (value.integer < 0) value.integer = INT64_MAX;
      return value;
    }
    case GgufValueType::kString:
    case GgufValueType::kArray:
      break;
  }
  ATELIER_CHECK(false);
  return {};
}

GgufArrayReader::GgufArrayReader(const GgufValue& array)
    : type_(array.element_type), left_(array.count), at_(array.elements.data()) {
  ATELIER_CHECK(array.type == GgufValueType::kArray && type_ != GgufValueType::kArray);
}

GgufValue GgufArrayReader::Next() {
  ATELIER_CHECK(left_ > 0);
  --left_;
  if (type_ != GgufValueType::kString) {
    const GgufValue value = ReadGgufScalar(type_, at_);
    at_ += GgufValueBytes(type_);
    return value;
  }
  GgufValue value;
  value.type = type_;
  const auto length = static_cast<size_t>(Load<uint64_t>(at_));
  value.text = {reinterpret_cast<const char*>(at_ + sizeof(uint64_t)), length};
  at_ += sizeof(uint64_t) + length;
  return value;
}

const GgufValue* GgufMetadata::Find(absl::string_view key) const {
  const auto found = values.find(key);
  return found == values.end() ? nullptr : &found->second;
}

void GgufFields::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

std::string GgufFields::Said(absl::string_view key) const {
  const GgufValue* value = metadata_.Find(key);
  return absl::StrCat(key, value == nullptr ? "" : absl::StrCat("=", Shown(*value)));
}

void GgufFields::Refuse(absl::string_view key, absl::string_view what, absl::StatusCode code) {
  Fail(absl::Status(code, absl::StrCat(metadata_.file, ": ", Said(key), " ", what)));
}

void GgufFields::FailMissing(absl::string_view key) {
  Fail(absl::InvalidArgumentError(
      absl::StrCat(metadata_.file, ": the metadata lack the required key ", key)));
}

// Of an array of equal elements, one of them.
const GgufValue* GgufFields::Scalar(absl::string_view key) {
  const GgufValue* value = metadata_.Find(key);
  if (value == nullptr || value->type != GgufValueType::kArray) return value;
  if (value->count == 0 || value->element_type == GgufValueType::kArray) {
    Refuse(key, "must be a single value or one per layer");
    return nullptr;
  }
  GgufArrayReader elements(*value);
  const GgufValue first = elements.Next();
  while (!elements.done()) {
    if (Equal(first, elements.Next())) continue;
    Refuse(key, "differs between layers, which is not supported by this build",
           absl::StatusCode::kUnimplemented);
    return nullptr;
  }
  scalar_ = first;
  return &scalar_;
}

int GgufFields::RequireInt(absl::string_view key, IntRange range) {
  if (!Has(key)) FailMissing(key);
  return Int(key, range, static_cast<int>(range.min));
}

int GgufFields::Int(absl::string_view key, IntRange range, int fallback) {
  const GgufValue* value = Scalar(key);
  if (value == nullptr) return fallback;
  if (!value->IsInteger() || value->integer < range.min || value->integer > range.max) {
    Refuse(key, absl::StrCat("must be an integer from ", range.min, " to ", range.max));
    return fallback;
  }
  return static_cast<int>(value->integer);
}

double GgufFields::RequireDouble(absl::string_view key, DoubleRange range) {
  if (!Has(key)) FailMissing(key);
  return Double(key, range, range.min);
}

double GgufFields::Double(absl::string_view key, DoubleRange range, double fallback) {
  const GgufValue* value = Scalar(key);
  if (value == nullptr) return fallback;
  const bool is_float = value->type == GgufValueType::kF32 || value->type == GgufValueType::kF64;
  const double number = is_float ? value->number : static_cast<double>(value->integer);
  if ((!is_float && !value->IsInteger()) || !(number >= range.min && number <= range.max)) {
    Refuse(key, absl::StrCat("must be a number from ", range.min, " to ", range.max));
    return fallback;
  }
  return number;
}

bool GgufFields::Bool(absl::string_view key, bool fallback) {
  const GgufValue* value = Scalar(key);
  if (value == nullptr) return fallback;
  if (value->type != GgufValueType::kBool) {
    Refuse(key, "must be true or false");
    return fallback;
  }
  return value->integer != 0;
}

std::string GgufFields::RequireString(absl::string_view key) {
  if (!Has(key)) FailMissing(key);
  return String(key, "");
}

std::string GgufFields::String(absl::string_view key, absl::string_view fallback) {
  const GgufValue* value = metadata_.Find(key);
  if (value == nullptr) return std::string(fallback);
  if (value->type != GgufValueType::kString) {
    Refuse(key, "must be text");
    return std::string(fallback);
  }
  return std::string(value->text);
}

const GgufValue* GgufFields::Array(absl::string_view key, GgufValueType element_type) {
  const GgufValue* value = metadata_.Find(key);
  if (value == nullptr) return nullptr;
  if (value->type == GgufValueType::kArray && value->element_type == element_type) return value;
  Refuse(key, element_type == GgufValueType::kString ? "must be a list of texts"
                                                     : "must be a list of 32-bit numbers");
  return nullptr;
}

}  // namespace atelier
