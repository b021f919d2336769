#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "libs/model/gguf_metadata.h"
#include "libs/model/model_config.h"

namespace atelier {

// What a GGUF file says of its model by the tensors that it has.
struct GgufTensorFacts {
  bool has_output = false;    // an output matrix beside the embedding
  bool has_qk_norm = false;   // of the first layer
  bool has_qkv_bias = false;  // likewise
  bool has_output_bias = false;
  int64_t vocab_size = 0;  // rows of the embedding; 0 = there is none
};

// From the metadata. INVALID_ARGUMENT names file, key and value; UNIMPLEMENTED names an
// architecture, router or position encoding that this build cannot compute, and lists the
// architectures it can.
absl::StatusOr<ModelConfig> ParseGgufConfig(const GgufMetadata& metadata,
                                            const GgufTensorFacts& facts);

}  // namespace atelier
