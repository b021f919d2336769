#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace atelier {

// One command-line flag: what --help says of it and what setting it does.
struct FlagSpec {
  std::string name;   // as users type it, without the two dashes: "cpu-isa"
  std::string value;  // placeholder in --help, e.g. "HOST:PORT"; empty = a switch
  std::string help;   // sentences; wrapped by FlagTable::Help
  // Parses and stores one value; the error says what would be valid (the flag's name and the value
  // are added by FlagTable).
  std::function<absl::Status(absl::string_view value)> set;
  bool repeatable = false;  // may be given several times with different values
};

struct FlagSection {
  std::string title;
  std::vector<FlagSpec> flags;
};

// The usual kinds of flags; `target` must outlive the table and holds the default, which --help
// shows.
FlagSpec StringFlag(std::string name, std::string value, std::string help, std::string* target);
struct IntRange {
  int64_t min = 0;
  int64_t max = 0;
};
FlagSpec IntFlag(std::string name, std::string help, IntRange range, int* target);
FlagSpec IntFlag(std::string name, std::string help, IntRange range, int64_t* target);
FlagSpec ChoiceFlag(std::string name, std::vector<std::string> choices, std::string help,
                    std::string* target);
// Comma-separated; empty elements are errors.
FlagSpec ListFlag(std::string name, std::string value, std::string help,
                  std::vector<std::string>* target);
// "1073741824", "512MiB", "1.5GiB", "2GB".
FlagSpec BytesFlag(std::string name, std::string help, int64_t* target);
// "250ms", "10s", "5m", "1h30m"; not negative.
FlagSpec DurationFlag(std::string name, std::string help, absl::Duration* target);
// --name, --name=true, --name=false.
FlagSpec SwitchFlag(std::string name, std::string help, bool* target);

// Bytes as BytesFlag reads them. INVALID_ARGUMENT says what is valid.
absl::StatusOr<int64_t> ParseBytes(absl::string_view text);
// "1.5 GiB": for people.
std::string FormatBytes(int64_t bytes);

// What the command line asked for.
enum class CommandLine { kRun, kHelp, kVersion };

// All flags of a program. Immutable, so one table serves parsing and --help and they cannot
// disagree.
class FlagTable {
 public:
  // `usage` is the first paragraph of --help. --help and --version are added by the table.
  FlagTable(std::string usage, std::vector<FlagSection> sections);

  // Sets flags: "--name=value", "--name value" or "--switch"; '_' in a name is read as '-', "-h" as
  // "--help". INVALID_ARGUMENT for an unknown flag (names one that is spelt nearly so), a missing
  // or bad value (names flag, value, and what is valid), a flag given twice with different values
  // unless it is repeatable, and for anything that is not a flag.
  absl::StatusOr<CommandLine> Parse(int argc, const char* const* argv) const;
  std::string Help() const;

 private:
  const FlagSpec* Find(absl::string_view name) const;
  absl::Status Unknown(absl::string_view name) const;
  absl::Status Set(const FlagSpec& flag, absl::string_view value,
                   std::map<std::string, std::string>& given) const;

  std::string usage_;
  std::vector<FlagSection> sections_;
};

}  // namespace atelier
