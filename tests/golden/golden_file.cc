#include "tests/golden/golden_file.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "libs/base/check.h"
#include "libs/base/float16.h"
#include "nlohmann/json.hpp"

namespace atelier::golden {
namespace {

using nlohmann::json;

// Tests run in the repository's root.
std::string ReadData(const std::string& file) {
  std::ifstream stream("tests/golden/data/" + file, std::ios::binary);
  ATELIER_CHECK(stream.good());
  return {std::istreambuf_iterator<char>(stream), {}};
}

RandomTensor ToTensor(const json& entry) {
  return {.name = entry[0],
          .shape = entry[1],
          .dtype = entry[2] == "BF16" ? DType::kBF16 : DType::kF32,
          .mean = entry[3],
          .scale = entry[4]};
}

Sequence ToSequence(const json& entry) {
  return {.name = entry.at("name"),
          .tokens = entry.at("tokens"),
          .first = entry.at("first"),
          .top1 = entry.at("top1"),
          .margin = entry.at("margin"),
          .router_gap = entry.at("router_gap"),
          .noise_bf16 = entry.at("noise_bf16"),
          .noise_int8 = entry.at("noise_int8"),
          .logit_rows = entry.at("logit_rows"),
          .logits = {}};
}

// The sequences' stored rows follow each other in the file, little-endian halves.
void FillLogits(const std::string& bytes, TinyGolden& golden) {
  size_t at = 0;
  for (Sequence& sequence : golden.sequences) {
    sequence.logits.resize(sequence.logit_rows.size() * static_cast<size_t>(golden.vocab_size));
    ATELIER_CHECK(at + sequence.logits.size() * 2 <= bytes.size());
    for (float& logit : sequence.logits) {
      const auto low = static_cast<uint8_t>(bytes[at++]);
      const auto high = static_cast<uint8_t>(bytes[at++]);
      logit = Float16ToFloat(static_cast<uint16_t>(low | (high << 8)));
    }
  }
  ATELIER_CHECK(at == bytes.size());
}

Answer ToAnswer(const json& entry) {
  return {.question = entry.at("question"),
          .prompt = entry.at("prompt"),
          .tokens = entry.at("tokens"),
          .margin = entry.at("margin"),
          .best_ids = entry.at("best_ids"),
          .best_logits = entry.at("best_logits"),
          .noise_int8 = entry.at("noise_int8")};
}

}  // namespace

TinyGolden LoadTinyGolden(const std::string& name) {
  const json file = json::parse(ReadData(name + ".json"));
  TinyGolden golden;
  golden.config_json = file.at("config").dump();
  golden.vocab_size = file.at("config").at("vocab_size");
  golden.weights_sha256 = file.at("weights_sha256");
  for (const json& entry : file.at("tensors")) golden.tensors.push_back(ToTensor(entry));
  for (const json& entry : file.at("sequences")) golden.sequences.push_back(ToSequence(entry));
  FillLogits(ReadData(file.at("logits_file")), golden);
  return golden;
}

DemoGolden LoadDemoGolden() {
  const json file = json::parse(ReadData("demo_model.json"));
  DemoGolden golden;
  for (const json& entry : file.at("answers")) golden.answers.push_back(ToAnswer(entry));
  const json& perplexity = file.at("perplexity");
  golden.perplexity = perplexity.at("perplexity");
  const std::vector<int32_t> tokens = perplexity.at("tokens");
  auto begin = tokens.begin();
  for (const json& window : perplexity.at("windows")) {
    const auto end = begin + window.at("predicted").get<int>() + 1;
    golden.windows.push_back({.tokens = {begin, end}, .nll = window.at("nll")});
    begin = end;
  }
  ATELIER_CHECK(begin == tokens.end());
  return golden;
}

}  // namespace atelier::golden
