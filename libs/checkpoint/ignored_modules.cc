#include "libs/checkpoint/ignored_modules.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "libs/checkpoint/quoted_name.h"

namespace atelier {
namespace {

constexpr size_t kMaxExpressions = 64;
constexpr size_t kMaxExpressionBytes = 1024;
constexpr int64_t kMaxExpressionMemory = int64_t{1} << 20;
constexpr absl::string_view kExpression = "re:";

// The module whose codes a tensor holds.
std::optional<absl::string_view> QuantisedModule(absl::string_view tensor, DType dtype) {
  for (const absl::string_view suffix : {".weight_packed", ".qweight"}) {
    if (absl::ConsumeSuffix(&tensor, suffix)) return tensor;
  }
  if (dtype == DType::kF8E4M3 && absl::ConsumeSuffix(&tensor, ".weight")) return tensor;
  return std::nullopt;
}

// A name in which "*" stands for anything, alone or at either end of others.
std::string WithAnything(absl::string_view entry) {
  std::string pattern = RE2::QuoteMeta(re2::StringPiece(entry.data(), entry.size()));
  absl::StrReplaceAll({{"\\*", ".*"}}, &pattern);
  return absl::StrCat(pattern, "(\\..*)?$|.*\\.", pattern, "$");
}

}  // namespace

absl::StatusOr<IgnoredModules> IgnoredModules::Create(const QuantizationConfig& config) {
  IgnoredModules modules;
  modules.key_ = config.ignored_key;
  modules.whole_names_ = config.ignored_key == "ignore";
  RE2::Options options(RE2::Quiet);
  options.set_max_mem(kMaxExpressionMemory);
  for (const std::string& entry : config.ignored) {
    const bool is_expression = modules.whole_names_ && absl::StartsWith(entry, kExpression);
    if (!is_expression && (modules.whole_names_ || !absl::StrContains(entry, '*'))) {
      modules.names_.insert(entry);
      continue;
    }
    if (entry.size() > kMaxExpressionBytes || modules.expressions_.size() == kMaxExpressions) {
      return absl::InvalidArgumentError(absl::StrCat(
          "config.json: quantization_config.", modules.key_, " has more than ", kMaxExpressions,
          " expressions, or one of more than ", kMaxExpressionBytes, " bytes"));
    }
    const std::string pattern =
        is_expression ? entry.substr(kExpression.size()) : WithAnything(entry);
    auto expression = std::make_unique<RE2>(pattern, options);
    if (expression->ok()) modules.expressions_.push_back(std::move(expression));
  }
  return modules;
}

bool IgnoredModules::Contains(absl::string_view module) const {
  if (names_.contains(module)) return true;
  for (size_t dot = module.find('.'); !whole_names_ && dot != module.npos;
       dot = module.find('.', dot + 1)) {
    if (names_.contains(module.substr(0, dot)) || names_.contains(module.substr(dot + 1))) {
      return true;
    }
  }
  const re2::StringPiece text(module.data(), module.size());
  return std::any_of(expressions_.begin(), expressions_.end(), [&](const auto& expression) {
    return expression->Match(text, 0, text.size(), RE2::ANCHOR_START, nullptr, 0);
  });
}

absl::Status IgnoredModules::Check(absl::string_view tensor, DType dtype,
                                   absl::string_view file) const {
  if (names_.empty() && expressions_.empty()) return absl::OkStatus();
  const std::optional<absl::string_view> module = QuantisedModule(tensor, dtype);
  if (!module || !Contains(*module)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(file, ": tensor ", QuotedName(tensor), " (", DTypeName(dtype),
                   ") is quantised, but config.json: quantization_config.", key_,
                   " says that its module is not: one of the two is of another checkpoint"));
}

}  // namespace atelier
