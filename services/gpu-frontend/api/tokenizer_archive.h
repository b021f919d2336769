#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace atelier {

// A model's tokenizer files as one zip, for gateways that do not share our file system. A plain
// value; the same files give the same bytes.
struct TokenizerArchive {
  std::string zip;     // entries are stored, not compressed
  std::string sha256;  // lower-case hex, of `zip`
};

// Packs the tokenizer files that lie directly in `directory` (tokenizer.json, vocabularies, chat
// templates, config.json, generation_config.json …). NOT_FOUND when there is no tokenizer among
// them; DATA_LOSS for a *.json that is none; RESOURCE_EXHAUSTED, with the size, beyond what the
// gateway accepts (50 files, 200 MiB).
absl::StatusOr<TokenizerArchive> PackTokenizer(const std::string& directory);

// The same of files that lie in no directory: name -> content. `origin` is for messages.
absl::StatusOr<TokenizerArchive> PackTokenizerFiles(const std::map<std::string, std::string>& files,
                                                    const std::string& origin);

}  // namespace atelier
