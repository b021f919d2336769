#include "libs/checkpoint/gguf_tokenizer.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "libs/base/quoted.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/gguf_set.h"
#include "libs/model/gguf_config.h"
#include "nlohmann/json.hpp"

namespace atelier {
namespace {

using nlohmann::json;

constexpr char kModel[] = "tokenizer.ggml.model";
constexpr char kPre[] = "tokenizer.ggml.pre";
constexpr char kTokens[] = "tokenizer.ggml.tokens";
constexpr char kTypes[] = "tokenizer.ggml.token_type";
constexpr char kMerges[] = "tokenizer.ggml.merges";
constexpr char kTemplate[] = "tokenizer.chat_template";
constexpr char kAddBos[] = "tokenizer.ggml.add_bos_token";
constexpr char kAddEos[] = "tokenizer.ggml.add_eos_token";

// Kinds of tokens that are found in a text before it is split. Only control tokens are left out of
// what people read.
constexpr int64_t kControl = 3;
constexpr int64_t kUserDefined = 4;

// How a text is split before its pieces are merged. All work on bytes that stand for characters.
struct PreTokenizer {
  absl::string_view name;   // tokenizer.ggml.pre
  absl::string_view regex;  // its matches are pieces, and so is what lies between; empty = GPT-2's
  bool single_digits;       // split off one by one, first
  bool nfc;                 // the text is normalised before
};

constexpr absl::string_view kQwen2Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr absl::string_view kGlm4Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::array<PreTokenizer, 5> kPreTokenizers = {{
    {"qwen2", kQwen2Regex, false, true},
    {"glm4", kGlm4Regex, false, false},
    {"chatglm-bpe", kGlm4Regex, false, false},
    {"gpt-2", "", false, false},
    {"smollm", "", true, false},
}};

struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<int64_t> types;  // as many
  std::vector<std::string> merges;
};

std::vector<std::string> Strings(const GgufValue* array) {
  std::vector<std::string> strings;
  if (array == nullptr) return strings;
  for (GgufArrayReader reader(*array); !reader.done();) {
    strings.emplace_back(std::string(reader.Next().text));
  }
  return strings;
}

absl::StatusOr<const PreTokenizer*> FindPreTokenizer(GgufFields& fields) {
  const std::string model = fields.RequireString(kModel);
  const std::string pre = fields.String(kPre, "");
  ATELIER_RETURN_IF_ERROR(fields.status());
  if (model != "gpt2") {
    fields.Refuse(kModel, "is not supported by this build, which knows gpt2 (byte-level BPE)",
                  absl::StatusCode::kUnimplemented);
    return fields.status();
  }
  const auto* found = std::find_if(kPreTokenizers.begin(), kPreTokenizers.end(),
                                   [&pre](const PreTokenizer& row) { return row.name == pre; });
  if (found != kPreTokenizers.end()) return found;
  const auto name = [](std::string* out, const PreTokenizer& row) { out->append(row.name.data()); };
  fields.Refuse(kPre,
                absl::StrCat("is not supported by this build, which knows ",
                             absl::StrJoin(kPreTokenizers, ", ", name),
                             ": take the model's Hugging Face tokenizer (--tokenizer-path)"),
                absl::StatusCode::kUnimplemented);
  return fields.status();
}

absl::StatusOr<Vocabulary> ReadVocabulary(GgufFields& fields) {
  Vocabulary vocabulary;
  vocabulary.tokens = Strings(fields.Array(kTokens, GgufValueType::kString));
  vocabulary.merges = Strings(fields.Array(kMerges, GgufValueType::kString));
  if (const GgufValue* types = fields.Array(kTypes, GgufValueType::kI32); types != nullptr) {
    for (GgufArrayReader reader(*types); !reader.done();) {
      vocabulary.types.push_back(reader.Next().integer);
    }
  } else {
    vocabulary.types.assign(vocabulary.tokens.size(), 1);
  }
  ATELIER_RETURN_IF_ERROR(fields.status());
  if (vocabulary.types.size() != vocabulary.tokens.size()) {
    fields.Refuse(kTypes, absl::StrCat("must have as many elements as ", kTokens, ", which has ",
                                       vocabulary.tokens.size()));
  }
  absl::flat_hash_set<std::string> seen;
  for (const std::string& token : vocabulary.tokens) {
    if (seen.insert(token).second) continue;
    fields.Refuse(kTokens, absl::StrCat("holds ", Quoted(token), " twice"));
  }
  ATELIER_RETURN_IF_ERROR(fields.status());
  return vocabulary;
}

// What a program that reads tokenizer.json would stumble over, later and without naming the file.
void CheckMerges(const Vocabulary& vocabulary, GgufFields& fields) {
  if (!fields.Has(kMerges)) {
    fields.Fail(absl::InvalidArgumentError(
        absl::StrCat(fields.file(), ": the metadata lack ", kMerges, ", which gpt2 needs")));
  }
  const absl::flat_hash_set<absl::string_view> known(vocabulary.tokens.begin(),
                                                     vocabulary.tokens.end());
  for (const std::string& merge : vocabulary.merges) {
    const std::vector<absl::string_view> parts = absl::StrSplit(merge, ' ');
    if (parts.size() == 2 && known.contains(parts[0]) && known.contains(parts[1]) &&
        known.contains(absl::StrCat(parts[0], parts[1]))) {
      continue;
    }
    fields.Refuse(kMerges, absl::StrCat("holds ", Quoted(merge), ": no two tokens of ", kTokens,
                                        " that make a third"));
    return;
  }
}

void RefuseWhatFilesCannotSay(GgufFields& fields) {
  if (!fields.Bool(kAddEos, false)) return;
  fields.Refuse(kAddEos, "is not supported by this build", absl::StatusCode::kUnimplemented);
}

bool IsAdded(int64_t type) { return type == kControl || type == kUserDefined; }

json AddedToken(const std::string& content, bool special) {
  return {{"content", content}, {"single_word", false}, {"lstrip", false},
          {"rstrip", false},    {"normalized", false},  {"special", special}};
}

json ByteLevel(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

json PreTokenizerJson(const PreTokenizer& pre) {
  json steps = json::array();
  if (pre.single_digits) steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
  if (!pre.regex.empty()) {
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", std::string(pre.regex)}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  steps.push_back(ByteLevel(pre.regex.empty()));
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

// Adds the first token of a text where the file asks for it.
json PostProcessor(const Vocabulary& vocabulary, std::optional<int64_t> bos) {
  if (!bos) return nullptr;
  const std::string& token = vocabulary.tokens[static_cast<size_t>(*bos)];
  const json special = {{"SpecialToken", {{"id", token}, {"type_id", 0}}}};
  const auto sequence = [](const char* id, int type) -> json {
    return {{"Sequence", {{"id", id}, {"type_id", type}}}};
  };
  return {{"type", "TemplateProcessing"},
          {"single", {special, sequence("A", 0)}},
          {"pair", {special, sequence("A", 0), sequence("B", 1)}},
          {"special_tokens", {{token, {{"id", token}, {"ids", {*bos}}, {"tokens", {token}}}}}}};
}

json TokenizerJson(const Vocabulary& vocabulary, const PreTokenizer& pre,
                   std::optional<int64_t> added_bos) {
  json added = json::array();
  json vocab = json::object();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    vocab[vocabulary.tokens[id]] = id;
    if (!IsAdded(vocabulary.types[id])) continue;
    json token = AddedToken(vocabulary.tokens[id], vocabulary.types[id] == kControl);
    token["id"] = id;
    added.push_back(std::move(token));
  }
  const json none = nullptr;
  return {{"version", "1.0"},
          {"truncation", none},
          {"padding", none},
          {"added_tokens", added},
          {"normalizer", pre.nfc ? json{{"type", "NFC"}} : none},
          {"pre_tokenizer", PreTokenizerJson(pre)},
          {"post_processor", PostProcessor(vocabulary, added_bos)},
          {"decoder", ByteLevel(true)},
          {"model",
           {{"type", "BPE"},
            {"dropout", none},
            {"unk_token", none},
            {"continuing_subword_prefix", none},
            {"end_of_word_suffix", none},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocab},
            {"merges", vocabulary.merges}}}};
}

// The id under `key`; nullopt when there is none.
std::optional<int64_t> TokenId(const char* key, const Vocabulary& vocabulary, GgufFields& fields) {
  const auto last = static_cast<int64_t>(vocabulary.tokens.size()) - 1;
  const int id = fields.Int(key, {0, last}, -1);
  return id >= 0 ? std::optional<int64_t>(id) : std::nullopt;
}

json TokenizerConfigJson(const Vocabulary& vocabulary, GgufFields& fields) {
  json added = json::object();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (!IsAdded(vocabulary.types[id])) continue;
    added[absl::StrCat(id)] = AddedToken(vocabulary.tokens[id], vocabulary.types[id] == kControl);
  }
  json config = {{"add_bos_token", fields.Bool(kAddBos, false)},
                 {"add_prefix_space", false},
                 {"added_tokens_decoder", added},
                 {"clean_up_tokenization_spaces", false},
                 {"tokenizer_class", "PreTrainedTokenizerFast"}};
  constexpr std::pair<const char*, const char*> kSpecial[] = {
      {"bos_token", "tokenizer.ggml.bos_token_id"},
      {"eos_token", "tokenizer.ggml.eos_token_id"},
      {"unk_token", "tokenizer.ggml.unknown_token_id"},
      {"pad_token", "tokenizer.ggml.padding_token_id"}};
  for (const auto& [name, key] : kSpecial) {
    const std::optional<int64_t> id = TokenId(key, vocabulary, fields);
    if (id) config[name] = vocabulary.tokens[static_cast<size_t>(*id)];
  }
  const std::string chat_template = fields.String(kTemplate, "");
  if (!chat_template.empty()) config["chat_template"] = chat_template;
  return config;
}

// A gateway takes the tokens off the end of an answer that this file names, and no others.
json GenerationConfigJson(const Vocabulary& vocabulary, GgufFields& fields) {
  json config = {{"eos_token_id", GgufStopIds(fields)}};
  const std::optional<int64_t> bos = TokenId("tokenizer.ggml.bos_token_id", vocabulary, fields);
  if (bos) config["bos_token_id"] = *bos;
  return config;
}

// Text of a file may be no UTF-8, which JSON cannot carry.
absl::StatusOr<std::string> Dump(const json& document, const GgufMetadata& metadata) {
  try {
    return document.dump();
  } catch (const json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(
        metadata.file, ": tokenizer: a token, a merge or the chat template is no UTF-8 (",
        error.what(), ")"));
  }
}

}  // namespace

absl::StatusOr<TokenizerFiles> ReadGgufTokenizer(const GgufMetadata& metadata) {
  if (metadata.Find(kTokens) == nullptr) {
    return absl::NotFoundError(
        absl::StrCat(metadata.file, ": the metadata hold no tokenizer (", kTokens, ")"));
  }
  GgufFields fields(metadata);
  ATELIER_ASSIGN_OR_RETURN(const PreTokenizer* pre, FindPreTokenizer(fields));
  ATELIER_ASSIGN_OR_RETURN(const Vocabulary vocabulary, ReadVocabulary(fields));
  const json config = TokenizerConfigJson(vocabulary, fields);
  const json generation = GenerationConfigJson(vocabulary, fields);
  const std::optional<int64_t> bos = TokenId("tokenizer.ggml.bos_token_id", vocabulary, fields);
  RefuseWhatFilesCannotSay(fields);
  CheckMerges(vocabulary, fields);
  ATELIER_RETURN_IF_ERROR(fields.status());
  const bool adds_bos = config["add_bos_token"].get<bool>();
  TokenizerFiles files;
  ATELIER_ASSIGN_OR_RETURN(
      files["tokenizer.json"],
      Dump(TokenizerJson(vocabulary, *pre, adds_bos ? bos : std::nullopt), metadata));
  ATELIER_ASSIGN_OR_RETURN(files["tokenizer_config.json"], Dump(config, metadata));
  ATELIER_ASSIGN_OR_RETURN(files["generation_config.json"], Dump(generation, metadata));
  return files;
}

absl::StatusOr<TokenizerFiles> ReadGgufTokenizer(const std::string& path) {
  ATELIER_ASSIGN_OR_RETURN(const GgufSet set, OpenGgufSet(path));
  return ReadGgufTokenizer(set.metadata());
}

}  // namespace atelier
