#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "libs/model/json_bounds.h"
#include "nlohmann/json.hpp"

namespace atelier {

// Receives the parts of a JSON text one by one, so that a large text needs no tree and repeated
// keys are seen. Every part that a subclass does not override is refused as unexpected.
class JsonReceiver : public nlohmann::json_sax<nlohmann::json> {
 public:
  // `file` names the source in messages.
  explicit JsonReceiver(absl::string_view file) : file_(file) {}

  const absl::Status& status() const { return status_; }
  const std::string& file() const { return file_; }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool value) override { return Unexpected(value ? "true" : "false"); }
  bool number_integer(int64_t value) override;
  bool number_unsigned(uint64_t value) override;
  bool number_float(double value, const std::string& text) override;
  bool string(std::string& value) override;
  bool binary(nlohmann::json::binary_t& value) override;
  bool start_object(size_t size) override;
  bool key(std::string& value) override;
  bool end_object() override { return true; }
  bool start_array(size_t size) override;
  bool end_array() override { return true; }
  bool parse_error(size_t position, const std::string& token,
                   const nlohmann::json::exception& error) override;

 protected:
  // Where the reading stands, for messages: "tensor \"x\": shape". May be empty.
  virtual std::string Place() const { return ""; }
  // Both keep the error and return false, which ends the reading.
  bool Unexpected(absl::string_view what);
  bool Fail(absl::string_view message, absl::StatusCode code = absl::StatusCode::kInvalidArgument);

 private:
  std::string file_;
  absl::Status status_;
};

// Feeds `text` (UTF-8) to `receiver` and returns its status, or INVALID_ARGUMENT naming file and
// byte where the text is no JSON. Memory is bounded by the limits and by what `receiver` keeps.
absl::Status ReadJson(absl::string_view text, const JsonLimits& limits, JsonReceiver& receiver);

}  // namespace atelier
