#pragma once

#include <string>
#include <vector>

namespace atelier {

// A published way of keeping quantised matrices: names, shapes and order of bits of the tensors.
enum class QuantFormat {
  kNone,
  kPackedInt4,   // compressed-tensors, pack-quantized
  kPackedMxFp4,  // compressed-tensors, mxfp4-pack-quantized
  kGptq,
  kAwq,
  kFp8Blocks,    // E4M3, a scale per 128 x 128
  kFp8Rows,      // E4M3, a scale per output row: compressed-tensors, float-quantized
  kMxFp8,        // E4M3, an exponent per 32 inputs
  kMxFp4Blocks,  // all experts of a layer in tensors of blocks and scales
};

// What config.json says of quantised matrices. Which ones are quantised is seen from the tensors;
// the list of exceptions must not contradict them.
struct QuantizationConfig {
  QuantFormat format = QuantFormat::kNone;
  int group_size = 0;                     // inputs that share a scale; 0 = all of an output row
  bool symmetric = true;                  // no zero points but the middle code
  int zero_offset = 0;                    // added to stored zero points
  std::vector<std::string> ignored = {};  // modules that are not quantised, …
  std::string ignored_key = {};           // … and where that is said; ignored_modules.h has how
};

}  // namespace atelier
