#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "libs/model/gguf_metadata.h"

namespace atelier {

// Files that a gateway's tokenizer is made of: name -> content.
using TokenizerFiles = std::map<std::string, std::string>;

// The byte-level BPE tokenizer in the metadata of a GGUF file as Hugging Face's files:
// tokenizer.json (vocabulary, merges, added tokens, pre-tokenizer), tokenizer_config.json (special
// tokens, chat template) and generation_config.json (stop tokens). NOT_FOUND when the metadata hold
// no tokenizer; UNIMPLEMENTED names a kind of tokenizer or of pre-tokenizer that this build does
// not know (and those it does); INVALID_ARGUMENT names file, key and what is wrong with it.
absl::StatusOr<TokenizerFiles> ReadGgufTokenizer(const GgufMetadata& metadata);

// The same of the file, or split set, at a path; errors as OpenGgufSet's too.
absl::StatusOr<TokenizerFiles> ReadGgufTokenizer(const std::string& path);

}  // namespace atelier
