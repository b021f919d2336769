#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "libs/model/shard.h"

namespace atelier {

// Which matrices of a layer's experts a file holds: gate and up, cut along their outputs, or down,
// cut along its inputs.
enum class PackedPart { kGateUp, kDown };

// All that the bytes of a file of packed experts depend on. A plain value.
struct PackedKey {
  std::string checkpoint_digest;
  int layout_version = 0;
  std::string methods;  // of the matrices, e.g. "BF16,BF16"
  int hidden_size = 0;
  int intermediate_size = 0;  // unsliced
  int layer = 0;
  PackedPart part = PackedPart::kGateUp;
  ExpertRange experts;
  IntermediateRange columns;
  size_t expert_bytes = 0;  // from one expert to the next, a multiple of 64

  size_t num_experts() const { return static_cast<size_t>(experts.end - experts.begin); }

  // "layer-0003.down.experts-0-127.columns-0-767.pack": both ends included.
  std::string FileName() const;
  // Lines name=value that say all of it; begins the file.
  std::string HeaderText() const;

  // Where things lie in the file (docs/weight-layout.md).
  size_t data_offset() const;
  size_t data_bytes() const { return num_experts() * expert_bytes; }
  size_t file_bytes() const { return data_offset() + data_bytes(); }
};

// What the name of a file says it holds; nullopt for what is not the name of a packed file.
struct PackedFileName {
  int layer = 0;
  PackedPart part = PackedPart::kGateUp;
  ExpertRange experts;
  IntermediateRange columns;
};
std::optional<PackedFileName> ParsePackedFileName(absl::string_view name);

}  // namespace atelier
