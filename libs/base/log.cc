#include "libs/base/log.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace atelier {
namespace {

void WriteToStderr(absl::string_view line) {
  // One write(2) per line keeps lines of concurrent threads whole; a failed write to stderr has
  // nowhere to go.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

bool NeedsQuotes(absl::string_view value) {
  return value.empty() || std::any_of(value.begin(), value.end(), [](unsigned char c) {
           return c <= ' ' || c == '"' || c == '=' || c == 0x7f;
         });
}

}  // namespace

absl::StatusOr<Severity> ParseSeverity(absl::string_view name) {
  if (name == "debug") return Severity::kDebug;
  if (name == "info") return Severity::kInfo;
  if (name == "warning") return Severity::kWarning;
  if (name == "error") return Severity::kError;
  return absl::InvalidArgumentError(
      absl::StrCat("log level \"", name, "\": must be debug, info, warning or error"));
}

Logger::Logger(Severity min_severity, Sink sink)
    : min_severity_(min_severity), sink_(sink ? std::move(sink) : WriteToStderr) {}

void Logger::Debug(absl::string_view event, Fields fields) const {
  Write(Severity::kDebug, event, fields);
}
void Logger::Info(absl::string_view event, Fields fields) const {
  Write(Severity::kInfo, event, fields);
}
void Logger::Warning(absl::string_view event, Fields fields) const {
  Write(Severity::kWarning, event, fields);
}
void Logger::Error(absl::string_view event, Fields fields) const {
  Write(Severity::kError, event, fields);
}

void Logger::Write(Severity severity, absl::string_view event, Fields fields) const {
  if (severity < min_severity_) return;
  static constexpr absl::string_view kLetters = "DIWE";
  std::string line = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
  absl::StrAppend(&line, " ", kLetters.substr(static_cast<size_t>(severity), 1), " ", event);
  for (const auto& [key, value] : fields) {
    absl::StrAppend(&line, " ", key, "=");
    if (NeedsQuotes(value)) {
      absl::StrAppend(&line, "\"", absl::Utf8SafeCEscape(value), "\"");
    } else {
      absl::StrAppend(&line, value);
    }
  }
  line.push_back('\n');
  sink_(line);
}

}  // namespace atelier
