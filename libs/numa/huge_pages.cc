#include "libs/numa/huge_pages.h"

#include "absl/strings/str_cat.h"
#include "libs/numa/system_files.h"

namespace atelier {
namespace {

// Weights smaller than this need few entries of the TLB on any pages.
constexpr int64_t kMinWeightBytes = int64_t{64} << 20;

// "always [madvise] never": the one in brackets.
std::string ChosenOf(const std::string& text) {
  const size_t open = text.find('['), close = text.find(']');
  if (open == std::string::npos || close == std::string::npos || close < open) return "unknown";
  return text.substr(open + 1, close - open - 1);
}

}  // namespace

HugePageUse HugePageUse::Read(const std::string& root) {
  const std::string rollup =
      ReadSystemFile(absl::StrCat(root, "/proc/self/smaps_rollup")).value_or("");
  HugePageUse use;
  use.reserved_bytes = FindCounter(rollup, "Private_Hugetlb:").value_or(0) +
                       FindCounter(rollup, "Shared_Hugetlb:").value_or(0);
  use.transparent_bytes = FindCounter(rollup, "AnonHugePages:").value_or(0);
  const auto setting =
      ReadSystemFile(absl::StrCat(root, "/sys/kernel/mm/transparent_hugepage/enabled"));
  if (setting) use.transparent = ChosenOf(*setting);
  return use;
}

void LogHugePages(const HugePageUse& use, int64_t weight_bytes, const Logger& logger) {
  const bool few = weight_bytes >= kMinWeightBytes &&
                   use.reserved_bytes + use.transparent_bytes < weight_bytes / 2;
  if (!few) {
    logger.Info(
        "huge_pages",
        {Kv("weight_bytes", weight_bytes), Kv("reserved_bytes", use.reserved_bytes),
         Kv("transparent_bytes", use.transparent_bytes), Kv("transparent", use.transparent)});
    return;
  }
  logger.Warning(
      "huge_pages",
      {Kv("weight_bytes", weight_bytes), Kv("reserved_bytes", use.reserved_bytes),
       Kv("transparent_bytes", use.transparent_bytes), Kv("transparent", use.transparent),
       Kv("advice",
          "weights are read slower from small pages: write madvise to "
          "/sys/kernel/mm/transparent_hugepage/enabled, or reserve pages by "
          "vm.nr_hugepages")});
}

}  // namespace atelier
