#pragma once

#include <cstdint>
#include <string>
#include <vector>

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
  // What is to stand in beyond_frontend for tensors that no part of this build knows.
  std::vector<std::string> unknown;
};

// From the metadata. INVALID_ARGUMENT names file, key and value; UNIMPLEMENTED names an
// architecture, listing those known, or a form of experts that no part of this build can compute.
// What only the frontend cannot is in ModelConfig::beyond_frontend.
absl::StatusOr<ModelConfig> ParseGgufConfig(const GgufMetadata& metadata,
                                            const GgufTensorFacts& facts);

// Every token that ends an answer: those that the metadata name, then the vocabulary's control
// tokens with the usual names of an end, since chat models end a turn with another token than a
// text and converters write one of both. Errors go to `fields`.
std::vector<int64_t> GgufStopIds(GgufFields& fields);

}  // namespace atelier
