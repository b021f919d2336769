#include "libs/base/flag_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "libs/base/quoted.h"

namespace atelier {
namespace {

constexpr size_t kHelpWidth = 96;
constexpr size_t kHelpIndent = 8;
constexpr size_t kMaxValueBytes = 200;  // of a value in an error

struct ByteUnit {
  absl::string_view suffix;
  double bytes;
};
// Longest suffixes first: "MiB" must not be read as "B".
constexpr std::array<ByteUnit, 10> kByteUnits = {{{"TiB", 0x1p40},
                                                  {"GiB", 0x1p30},
                                                  {"MiB", 0x1p20},
                                                  {"KiB", 0x1p10},
                                                  {"TB", 1e12},
                                                  {"GB", 1e9},
                                                  {"MB", 1e6},
                                                  {"kB", 1e3},
                                                  {"KB", 1e3},
                                                  {"B", 1}}};

std::string WithDefault(std::string help, absl::string_view value) {
  return value.empty() ? help : absl::StrCat(help, " Default: ", value, ".");
}

size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

void AppendWrapped(absl::string_view text, std::string* out) {
  size_t column = 0;
  for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (column > 0 && column + 1 + word.size() > kHelpWidth) {
      out->push_back('\n');
      column = 0;
    }
    if (column == 0) {
      out->append(kHelpIndent, ' ');
      column = kHelpIndent;
    } else {
      out->push_back(' ');
      ++column;
    }
    out->append(word.data(), word.size());
    column += word.size();
  }
  out->push_back('\n');
}

std::string NormalizedName(absl::string_view name) {
  std::string result(name);
  std::replace(result.begin(), result.end(), '_', '-');
  return result;
}

// Digits with at most a sign before and one dot among them: Abseil's readers also take blanks, hex
// and exponents, which nobody types into a flag on purpose.
bool IsPlainNumber(absl::string_view text) {
  if (!text.empty() && text[0] == '-') text.remove_prefix(1);
  int dots = 0;
  for (const char c : text) {
    dots += c == '.' ? 1 : 0;
    if (c != '.' && !absl::ascii_isdigit(static_cast<unsigned char>(c))) return false;
  }
  return !text.empty() && dots <= 1 && text[0] != '.';
}

template <typename T>
FlagSpec AnyIntFlag(std::string name, std::string help, IntRange range, T* target) {
  help = WithDefault(std::move(help), absl::StrCat(*target));
  return {std::move(name), "N", std::move(help),
          [range, target](absl::string_view text) -> absl::Status {
            T value = 0;
            if (!IsPlainNumber(text) || !absl::SimpleAtoi(text, &value) || value < range.min ||
                value > range.max) {
              return absl::InvalidArgumentError(
                  absl::StrCat("must be a whole number from ", range.min, " to ", range.max));
            }
            *target = value;
            return absl::OkStatus();
          }};
}

// A value as one could type it: in quotes where it would not be one word.
std::string AsTyped(absl::string_view value) {
  const bool plain = !value.empty() && std::all_of(value.begin(), value.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c)) && c != '"';
  });
  return plain && value.size() <= kMaxValueBytes ? std::string(value)
                                                 : Quoted(value, kMaxValueBytes);
}

absl::StatusOr<bool> ParseBool(absl::string_view text) {
  if (text == "true" || text == "1") return true;
  if (text == "false" || text == "0") return false;
  return absl::InvalidArgumentError("must be true or false");
}

}  // namespace

absl::StatusOr<int64_t> ParseBytes(absl::string_view text) {
  const absl::Status invalid = absl::InvalidArgumentError(
      "must be a number of bytes, optionally with KiB, MiB, GiB, TiB, kB, MB, GB or TB");
  double unit = 1;
  absl::string_view number = text;
  for (const ByteUnit& candidate : kByteUnits) {
    if (text.size() > candidate.suffix.size() &&
        text.substr(text.size() - candidate.suffix.size()) == candidate.suffix) {
      unit = candidate.bytes;
      number.remove_suffix(candidate.suffix.size());
      break;
    }
  }
  number = absl::StripTrailingAsciiWhitespace(number);
  if (!IsPlainNumber(number) || number[0] == '-') return invalid;
  if (unit == 1) {
    int64_t whole = 0;
    return absl::SimpleAtoi(number, &whole) ? absl::StatusOr<int64_t>(whole) : invalid;
  }
  double value = 0;
  if (!absl::SimpleAtod(number, &value)) return invalid;
  const double bytes = value * unit;
  if (!std::isfinite(bytes) || bytes >= 0x1p62) return invalid;
  return static_cast<int64_t>(bytes);
}

std::string FormatBytes(int64_t bytes) {
  for (size_t i = 0; i < 4; ++i) {
    if (static_cast<double>(bytes) >= kByteUnits[i].bytes) {
      const double value = static_cast<double>(bytes) / kByteUnits[i].bytes;
      return absl::StrCat(std::round(value * 100) / 100, " ", kByteUnits[i].suffix);
    }
  }
  return absl::StrCat(bytes, " B");
}

FlagSpec StringFlag(std::string name, std::string value, std::string help, std::string* target) {
  help = WithDefault(std::move(help), *target);
  return {std::move(name), std::move(value), std::move(help),
          [target](absl::string_view text) -> absl::Status {
            if (text.empty()) {
              return absl::InvalidArgumentError("must not be empty; leave it out for the default");
            }
            *target = std::string(text);
            return absl::OkStatus();
          }};
}

FlagSpec IntFlag(std::string name, std::string help, IntRange range, int* target) {
  return AnyIntFlag(std::move(name), std::move(help), range, target);
}

FlagSpec IntFlag(std::string name, std::string help, IntRange range, int64_t* target) {
  return AnyIntFlag(std::move(name), std::move(help), range, target);
}

FlagSpec ChoiceFlag(std::string name, std::vector<std::string> choices, std::string help,
                    std::string* target) {
  help = WithDefault(std::move(help), *target);
  std::string value = absl::StrJoin(choices, "|");
  return {std::move(name), value, std::move(help),
          [choices = std::move(choices), target](absl::string_view text) -> absl::Status {
            if (std::find(choices.begin(), choices.end(), std::string(text)) == choices.end()) {
              return absl::InvalidArgumentError(
                  absl::StrCat("must be one of ", absl::StrJoin(choices, ", ")));
            }
            *target = std::string(text);
            return absl::OkStatus();
          }};
}

FlagSpec ListFlag(std::string name, std::string value, std::string help,
                  std::vector<std::string>* target) {
  help = WithDefault(std::move(help), absl::StrJoin(*target, ","));
  return {std::move(name), std::move(value), std::move(help),
          [target](absl::string_view text) -> absl::Status {
            std::vector<std::string> elements = absl::StrSplit(text, ',');
            if (std::find(elements.begin(), elements.end(), "") != elements.end()) {
              return absl::InvalidArgumentError(
                  "must be a comma-separated list without empty elements");
            }
            *target = std::move(elements);
            return absl::OkStatus();
          }};
}

FlagSpec BytesFlag(std::string name, std::string help, int64_t* target) {
  help = WithDefault(std::move(help), *target > 0 ? FormatBytes(*target) : "");
  return {std::move(name), "BYTES", std::move(help),
          [target](absl::string_view text) -> absl::Status {
            const absl::StatusOr<int64_t> bytes = ParseBytes(text);
            if (bytes.ok()) *target = *bytes;
            return bytes.status();
          }};
}

FlagSpec DurationFlag(std::string name, std::string help, absl::Duration* target) {
  help = WithDefault(std::move(help), absl::FormatDuration(*target));
  return {std::move(name), "TIME", std::move(help),
          [target](absl::string_view text) -> absl::Status {
            absl::Duration value;
            if (!absl::ParseDuration(text, &value) || value < absl::ZeroDuration()) {
              return absl::InvalidArgumentError("must be a time such as 250ms, 10s, 5m or 1h30m");
            }
            *target = value;
            return absl::OkStatus();
          }};
}

FlagSpec SwitchFlag(std::string name, std::string help, bool* target) {
  return {std::move(name), "", std::move(help), [target](absl::string_view text) -> absl::Status {
            const absl::StatusOr<bool> value = ParseBool(text);
            if (value.ok()) *target = *value;
            return value.status();
          }};
}

FlagTable::FlagTable(std::string usage, std::vector<FlagSection> sections)
    : usage_(std::move(usage)), sections_(std::move(sections)) {
  const auto nothing = [](absl::string_view) { return absl::OkStatus(); };
  sections_.push_back({"About",
                       {{"help", "", "Prints this text; -h does too.", nothing},
                        {"version", "", "Prints the version.", nothing}}});
}

const FlagSpec* FlagTable::Find(absl::string_view name) const {
  for (const FlagSection& section : sections_) {
    for (const FlagSpec& flag : section.flags) {
      if (flag.name == name) return &flag;
    }
  }
  return nullptr;
}

absl::Status FlagTable::Unknown(absl::string_view name) const {
  std::string nearest;
  size_t best = std::numeric_limits<size_t>::max();
  for (const FlagSection& section : sections_) {
    for (const FlagSpec& flag : section.flags) {
      const size_t distance = EditDistance(name, flag.name);
      if (distance < best) {
        best = distance;
        nearest = flag.name;
      }
    }
  }
  // Two letters are a slip (or one swap), unless that is most of the name.
  const bool close = best <= 2 && best * 2 <= name.size();
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown flag --", name, ": ", close ? absl::StrCat("did you mean --", nearest, "? ") : "",
      "--help lists all flags"));
}

absl::Status FlagTable::Set(const FlagSpec& flag, absl::string_view value,
                            std::map<std::string, std::string>& given) const {
  const auto [it, first] = given.emplace(flag.name, std::string(value));
  if (!first && !flag.repeatable && it->second != value) {
    return absl::InvalidArgumentError(absl::StrCat("--", flag.name, "=", AsTyped(value),
                                                   ": given before as ", AsTyped(it->second),
                                                   "; give it once"));
  }
  const absl::Status status = flag.set(value);
  if (status.ok()) return status;
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag.name, "=", AsTyped(value), ": ", status.message()));
}

absl::StatusOr<CommandLine> FlagTable::Parse(int argc, const char* const* argv) const {
  std::map<std::string, std::string> given;
  for (int i = 1; i < argc; ++i) {
    const absl::string_view argument = argv[i];
    if (argument == "-h") return CommandLine::kHelp;
    if (argument.size() < 3 || argument.substr(0, 2) != "--") {
      return absl::InvalidArgumentError(
          absl::StrCat("unexpected argument \"", argument, "\": flags start with --"));
    }
    const std::vector<absl::string_view> parts =
        absl::StrSplit(argument.substr(2), absl::MaxSplits('=', 1));
    const std::string name = NormalizedName(parts[0]);
    if (name == "help" || name == "version") {
      if (parts.size() == 2) {
        return absl::InvalidArgumentError(absl::StrCat("--", name, " takes no value"));
      }
      return name == "help" ? CommandLine::kHelp : CommandLine::kVersion;
    }
    const FlagSpec* flag = Find(name);
    if (flag == nullptr) return Unknown(name);
    absl::string_view value = "true";
    if (parts.size() == 2) {
      value = parts[1];
    } else if (!flag->value.empty()) {
      if (i + 1 == argc || absl::string_view(argv[i + 1]).substr(0, 2) == "--") {
        return absl::InvalidArgumentError(
            absl::StrCat("--", name, " needs a value: --", name, "=", flag->value));
      }
      value = argv[++i];
    }
    if (absl::Status status = Set(*flag, value, given); !status.ok()) return status;
  }
  return CommandLine::kRun;
}

std::string FlagTable::Help() const {
  std::string out = absl::StrCat(usage_, "\n");
  for (const FlagSection& section : sections_) {
    absl::StrAppend(&out, "\n", section.title, ":\n");
    for (const FlagSpec& flag : section.flags) {
      absl::StrAppend(&out, "  --", flag.name, flag.value.empty() ? "" : "=", flag.value, "\n");
      AppendWrapped(flag.help, &out);
    }
  }
  return out;
}

}  // namespace atelier
