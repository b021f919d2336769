#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace atelier {

// Inclusive bounds of a number.
struct IntRange {
  int64_t min;
  int64_t max;
};
struct DoubleRange {
  double min;
  double max;
};

// Reads typed fields from a JSON object. Keeps the first error, after which every getter returns
// its fallback: callers read all fields in a row and look at status() once. Each getter takes the
// spellings of one field and uses the first that is present and not null. A null counts as absent,
// as in the files' reference reader. Borrows the object.
class ConfigFields {
 public:
  using Keys = std::initializer_list<absl::string_view>;

  // `file` names the source in messages.
  ConfigFields(const nlohmann::json& object, absl::string_view file);

  // The key must be there.
  int RequireInt(Keys keys, IntRange range);
  int Int(Keys keys, IntRange range, int fallback);
  int64_t Int64(Keys keys, IntRange range, int64_t fallback);
  double RequireDouble(Keys keys, DoubleRange range);
  double Double(Keys keys, DoubleRange range, double fallback);
  bool Bool(Keys keys, bool fallback);
  std::string String(Keys keys, absl::string_view fallback);
  std::vector<std::string> Strings(Keys keys);           // a list; empty when absent
  std::vector<int64_t> Ints(Keys keys, IntRange range);  // likewise
  // A single integer or a list of integers; empty when absent.
  std::vector<int64_t> IntOrInts(Keys keys, IntRange range);
  // nullptr when absent; an error when it is not an object.
  const nlohmann::json* Object(Keys keys);

  bool Has(Keys keys) const { return Lookup(keys).value != nullptr; }
  // Keeps `status` if it is the first error.
  void Fail(absl::Status status);
  const absl::Status& status() const { return status_; }

 private:
  struct Field {
    absl::string_view key;
    const nlohmann::json* value = nullptr;
  };

  Field Lookup(Keys keys) const;
  void FailMissing(Keys keys);
  void FailType(const Field& field, absl::string_view wanted);
  std::optional<int64_t> Integer(absl::string_view key, const nlohmann::json& value,
                                 IntRange range);
  std::optional<double> Number(const Field& field, DoubleRange range);

  const nlohmann::json& object_;
  std::string file_;
  absl::Status status_;
};

// The JSON object in `text`, or INVALID_ARGUMENT naming `file` and the byte of the error.
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text, absl::string_view file);

}  // namespace atelier
