#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace atelier {

// The types of metadata values of a GGUF file, by their numbers there.
enum class GgufValueType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12
};

// A metadata value, or an element of an array. Text and arrays are views of the file's bytes, which
// whoever read the value has checked.
struct GgufValue {
  GgufValueType type = GgufValueType::kU8;
  int64_t integer = 0;  // of integers and bool; a u64 beyond int64 is INT64_MAX
  double number = 0;    // of F32 and F64
  absl::string_view text;
  // Of arrays: `count` elements of a type, as they lie in the file (strings: a u64 length, then the
  // bytes).
  GgufValueType element_type = GgufValueType::kU8;
  uint64_t count = 0;
  absl::Span<const uint8_t> elements;

  bool IsInteger() const;  // of any width, not bool
};

// Bytes of one value in a file; 0 for strings and arrays.
size_t GgufValueBytes(GgufValueType type);

// The elements of an array of scalars or strings, in order.
class GgufArrayReader {
 public:
  // REQUIRES: an array whose elements are no arrays, and its bytes checked.
  explicit GgufArrayReader(const GgufValue& array);
  bool done() const { return left_ == 0; }
  GgufValue Next();  // REQUIRES: !done()

 private:
  GgufValueType type_;
  uint64_t left_;
  const uint8_t* at_;
};

// Reads one scalar that is no string as it lies in a file. REQUIRES: GgufValueBytes(type) bytes.
GgufValue ReadGgufScalar(GgufValueType type, const uint8_t* at);

// All metadata of a file (of a split set: of its first part).
struct GgufMetadata {
  std::string file;  // for messages
  absl::flat_hash_map<std::string, GgufValue> values;

  // nullptr when there is none.
  const GgufValue* Find(absl::string_view key) const;
};

// Typed reading of metadata. Keeps the first error, after which every getter returns its fallback.
// Borrows the metadata.
class GgufFields {
 public:
  struct IntRange {
    int64_t min;
    int64_t max;
  };
  struct DoubleRange {
    double min;
    double max;
  };

  explicit GgufFields(const GgufMetadata& metadata) : metadata_(metadata) {}

  const std::string& file() const { return metadata_.file; }
  bool Has(absl::string_view key) const { return metadata_.Find(key) != nullptr; }
  // Of any integer type. An array, which some keys may have per layer, must hold equal elements.
  int RequireInt(absl::string_view key, IntRange range);
  int Int(absl::string_view key, IntRange range, int fallback);
  double RequireDouble(absl::string_view key, DoubleRange range);
  double Double(absl::string_view key, DoubleRange range, double fallback);
  bool Bool(absl::string_view key, bool fallback);
  std::string RequireString(absl::string_view key);
  std::string String(absl::string_view key, absl::string_view fallback);
  // The array of strings (integers) or an error; nullptr when it is absent.
  const GgufValue* Array(absl::string_view key, GgufValueType element_type);

  // "key=value", for messages; long values are cut.
  std::string Said(absl::string_view key) const;

  // Keeps `status` if it is the first error. Refuse: an error about what `key` says.
  void Fail(absl::Status status);
  void Refuse(absl::string_view key, absl::string_view what,
              absl::StatusCode code = absl::StatusCode::kInvalidArgument);
  const absl::Status& status() const { return status_; }

 private:
  const GgufValue* Scalar(absl::string_view key);
  void FailMissing(absl::string_view key);

  const GgufMetadata& metadata_;
  GgufValue scalar_;  // out of an array
  absl::Status status_;
};

}  // namespace atelier
