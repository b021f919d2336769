#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace atelier {

enum class Severity { kDebug, kInfo, kWarning, kError };

// "debug", "info", "warning" or "error", as --log-level spells them; INVALID_ARGUMENT otherwise.
absl::StatusOr<Severity> ParseSeverity(absl::string_view name);

// One line per event: `2026-12-02T07:10:29.123Z I worker_serving port=7070 shards=1`. Values with
// blanks, quotes or control characters are quoted and escaped, so a peer's text cannot forge a
// line. Thread-safe (a line is one write). Owned by main, passed by reference; the default sink is
// stderr.
class Logger {
 public:
  using Sink = std::function<void(absl::string_view line)>;
  using Field = std::pair<absl::string_view, std::string>;
  using Fields = std::initializer_list<Field>;

  explicit Logger(Severity min_severity = Severity::kInfo, Sink sink = nullptr);

  void Debug(absl::string_view event, Fields fields = {}) const;
  void Info(absl::string_view event, Fields fields = {}) const;
  void Warning(absl::string_view event, Fields fields = {}) const;
  void Error(absl::string_view event, Fields fields = {}) const;

 private:
  void Write(Severity severity, absl::string_view event, Fields fields) const;

  Severity min_severity_;
  Sink sink_;
};

// Builds a field from anything absl::StrCat takes: logger.Info("loaded", {Kv("layers", n)}).
template <typename T>
Logger::Field Kv(absl::string_view key, const T& value) {
  return {key, absl::StrCat(value)};
}

}  // namespace atelier
