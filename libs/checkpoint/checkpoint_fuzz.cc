#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "libs/base/check.h"
#include "libs/checkpoint/gguf_header.h"
#include "libs/checkpoint/gguf_names.h"
#include "libs/checkpoint/gguf_tokenizer.h"
#include "libs/checkpoint/safetensors_header.h"
#include "libs/checkpoint/shard_index.h"
#include "libs/model/gguf_config.h"
#include "libs/model/model_config.h"
#include "nlohmann/json.hpp"

// Gives the same bytes to every parser of a checkpoint. Corpus: testdata/fuzz_corpus, which also
// runs as a unit test.

namespace atelier {
namespace {

using nlohmann::json;

void ParseAsFile(absl::Span<const uint8_t> bytes) {
  const absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(bytes, "fuzz");
  if (!header.ok()) return;
  uint64_t covered = 0;
  for (const HeaderTensor& tensor : header->tensors) {
    ATELIER_CHECK(tensor.begin == covered && tensor.end >= tensor.begin);
    covered = tensor.end;
  }
  ATELIER_CHECK(header->data_begin + covered == bytes.size());
}

// As the header of a file without data: mutations need not keep a length right.
void ParseAsHeader(absl::Span<const uint8_t> bytes) {
  const uint64_t length = bytes.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  file.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  ParseAsFile({reinterpret_cast<const uint8_t*>(file.data()), file.size()});
}

void ReadArrays(const GgufMetadata& metadata) {
  for (const auto& [key, value] : metadata.values) {
    const bool readable =
        value.type == GgufValueType::kArray && value.element_type != GgufValueType::kArray;
    if (!readable) continue;
    size_t bytes = 0;
    for (GgufArrayReader elements(value); !elements.done();) bytes += elements.Next().text.size();
    ATELIER_CHECK(bytes <= value.elements.size());
  }
}

void ParseAsGguf(absl::Span<const uint8_t> bytes) {
  const absl::StatusOr<GgufHeader> header = ParseGgufHeader(bytes, "fuzz");
  if (!header.ok()) return;
  uint64_t covered = header->data_begin;
  for (const GgufTensor& tensor : header->tensors) {
    ATELIER_CHECK(tensor.begin >= covered && tensor.end > tensor.begin);
    ATELIER_CHECK(tensor.type != nullptr && !tensor.shape.empty());
    covered = tensor.end;
    (void)PublishedName(tensor.name);
  }
  ATELIER_CHECK(covered <= bytes.size());
  ReadArrays(header->metadata);
  const absl::StatusOr<TokenizerFiles> tokenizer = ReadGgufTokenizer(header->metadata);
  if (tokenizer.ok()) {
    for (const auto& [name, content] : *tokenizer) {
      ATELIER_CHECK(!absl::EndsWith(name, ".json") || json::accept(content));
    }
  }
  GgufTensorFacts facts;
  facts.vocab_size = 100;
  const absl::StatusOr<ModelConfig> config = ParseGgufConfig(header->metadata, facts);
  if (config.ok()) ATELIER_CHECK(config->Validate().ok());
}

}  // namespace
}  // namespace atelier

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  atelier::ParseAsFile({data, size});
  atelier::ParseAsGguf({data, size});
  if (size == 0 || data[0] != '{') return 0;
  atelier::ParseAsHeader({data, size});
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  (void)atelier::ParseShardIndex(text, "fuzz");
  absl::StatusOr<atelier::ModelConfig> config = atelier::ParseModelConfig(text);
  if (config.ok()) ATELIER_CHECK(config->Validate().ok());
  atelier::ModelConfig merged;
  (void)atelier::MergeGenerationConfig(text, merged);
  return 0;
}
