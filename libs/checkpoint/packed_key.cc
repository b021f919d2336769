#include "libs/checkpoint/packed_key.h"

#include <cstdio>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "libs/base/checked_math.h"
#include "libs/checkpoint/packed_file.h"

namespace atelier {
namespace {

absl::string_view PartName(PackedPart part) {
  return part == PackedPart::kGateUp ? "gate_up" : "down";
}

std::string Inclusive(int begin, int end) { return absl::StrCat(begin, "-", end - 1); }

// "prefix-3-7" as the half-open [3, 8).
bool ParseField(absl::string_view text, absl::string_view prefix, int& begin, int& end) {
  if (!absl::ConsumePrefix(&text, prefix)) return false;
  const absl::StatusOr<ExpertRange> range = ParseExpertRange(text);
  if (!range.ok()) return false;
  begin = range->begin;
  end = range->end;
  return true;
}

}  // namespace

std::string PackedKey::FileName() const {
  char number[16];
  std::snprintf(number, sizeof(number), "%04d", layer);
  return absl::StrCat("layer-", number, ".", PartName(part), ".experts-",
                      Inclusive(experts.begin, experts.end), ".columns-",
                      Inclusive(columns.begin, columns.end), ".pack");
}

std::string PackedKey::HeaderText() const {
  return absl::StrCat(
      "atelier packed experts\nfile_version=1\nlayout_version=", layout_version,
      "\ncheckpoint=", checkpoint_digest, "\nmethods=", methods, "\nhidden_size=", hidden_size,
      "\nintermediate_size=", intermediate_size, "\nlayer=", layer, "\npart=", PartName(part),
      "\nexperts=", Inclusive(experts.begin, experts.end),
      "\ncolumns=", Inclusive(columns.begin, columns.end), "\nexpert_bytes=", expert_bytes,
      "\ndata_offset=", data_offset(), "\nfile_bytes=", file_bytes(), "\n");
}

size_t PackedKey::data_offset() const {
  return RoundUp(kPackedHeaderBytes + num_experts() * sizeof(uint64_t), kPackedHeaderBytes);
}

std::optional<PackedFileName> ParsePackedFileName(absl::string_view name) {
  const std::vector<absl::string_view> fields = absl::StrSplit(name, '.');
  if (fields.size() != 5 || fields[4] != "pack") return std::nullopt;
  PackedFileName parsed;
  absl::string_view layer = fields[0];
  if (!absl::ConsumePrefix(&layer, "layer-") || !absl::SimpleAtoi(layer, &parsed.layer)) {
    return std::nullopt;
  }
  parsed.part = fields[1] == PartName(PackedPart::kDown) ? PackedPart::kDown : PackedPart::kGateUp;
  const bool valid = fields[1] == PartName(parsed.part) &&
                     ParseField(fields[2], "experts-", parsed.experts.begin, parsed.experts.end) &&
                     ParseField(fields[3], "columns-", parsed.columns.begin, parsed.columns.end);
  if (!valid) return std::nullopt;
  return parsed;
}

}  // namespace atelier
