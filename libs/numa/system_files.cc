#include "libs/numa/system_files.h"

#include <fstream>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace atelier {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 20;
constexpr int kMaxCpus = 65536;

bool ParseIndex(absl::string_view text, int& index) {
  return absl::SimpleAtoi(text, &index) && index >= 0 && index < kMaxCpus;
}

bool AddRange(absl::string_view text, std::set<int>& cpus) {
  const std::pair<absl::string_view, absl::string_view> ends =
      absl::StrSplit(text, absl::MaxSplits('-', 1));
  int first = 0;
  if (!ParseIndex(ends.first, first)) return false;
  int last = first;
  if (absl::StrContains(text, '-') && !ParseIndex(ends.second, last)) return false;
  if (last < first) return false;
  for (int cpu = first; cpu <= last; ++cpu) cpus.insert(cpu);
  return true;
}

}  // namespace

std::optional<std::string> ReadSystemFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string text(kMaxFileBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || (file.fail() && !file.eof())) return std::nullopt;
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

std::optional<std::vector<int>> ParseCpuList(absl::string_view text) {
  std::set<int> cpus;
  const absl::string_view list = absl::StripAsciiWhitespace(text);
  if (list.empty()) return std::vector<int>();
  for (const absl::string_view range : absl::StrSplit(list, ',')) {
    if (!AddRange(range, cpus)) return std::nullopt;
  }
  return std::vector<int>(cpus.begin(), cpus.end());
}

std::optional<int64_t> FindCounter(absl::string_view text, absl::string_view key) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    for (size_t i = 0; i + 1 < words.size(); ++i) {
      int64_t value = 0;
      if (words[i] != key) continue;
      if (!absl::SimpleAtoi(words[i + 1], &value) || value < 0) return std::nullopt;
      const bool kilobytes = i + 2 < words.size() && words[i + 2] == "kB";
      return kilobytes ? value * 1024 : value;
    }
  }
  return std::nullopt;
}

}  // namespace atelier
