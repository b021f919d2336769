#include "libs/checkpoint/tensor_names.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace atelier {
namespace {

struct Spelling {
  absl::string_view published;
  absl::string_view canonical;
};

// The first that is found counts.
constexpr Spelling kBlocks[] = {
    {".block_sparse_moe.e_score_correction_bias", ".mlp.gate.e_score_correction_bias"},
    {".block_sparse_moe.", ".mlp."},
    {".mlp.shared_expert.", ".mlp.shared_experts."},
    {".mlp.router.", ".mlp.gate."},
};

constexpr Spelling kMatrices[] = {{"w1", "gate_proj"}, {"w2", "down_proj"}, {"w3", "up_proj"}};

void Replace(const Spelling& spelling, size_t at, std::string& name) {
  name.replace(at, spelling.published.size(), std::string(spelling.canonical));
}

// "….mlp.experts.3.w1.weight"
void RenameMatrix(std::string& name) {
  constexpr absl::string_view kExperts = ".mlp.experts.";
  const size_t experts = name.find(std::string(kExperts));
  if (experts == std::string::npos) return;
  const size_t dot = name.find('.', experts + kExperts.size());
  if (dot == std::string::npos) return;
  for (const Spelling& matrix : kMatrices) {
    const absl::string_view rest = absl::string_view(name).substr(dot + 1);
    if (absl::StartsWith(rest, absl::StrCat(matrix.published, "."))) {
      return Replace(matrix, dot + 1, name);
    }
  }
}

}  // namespace

std::string CanonicalName(absl::string_view published) {
  std::string name(absl::StripPrefix(published, "language_model."));
  constexpr absl::string_view kNested = "model.language_model.";
  if (absl::StartsWith(name, kNested)) name.replace(0, kNested.size(), "model.");
  for (const Spelling& block : kBlocks) {
    const size_t at = name.find(std::string(block.published));
    if (at == std::string::npos) continue;
    Replace(block, at, name);
    break;
  }
  RenameMatrix(name);
  return name;
}

}  // namespace atelier
