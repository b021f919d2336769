#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "libs/model/dtype.h"

namespace atelier::golden {

// What tools/gen_golden wrote into tests/golden/data. Plain values; a file that is absent or broken
// is a bug of the tree and ends the test program.

// A tensor of a tiny model, made by integer arithmetic (random_weights.h).
struct RandomTensor {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype = DType::kBF16;
  float mean = 0;
  float scale = 0;
};

// The reference's results for the positions [first, tokens.size()) of one sequence.
struct Sequence {
  std::string name;
  std::vector<int32_t> tokens;
  int first = 0;
  std::vector<int32_t> top1;      // per position
  std::vector<float> margin;      // per position: best logit minus second best
  std::vector<float> router_gap;  // per position: see rounding.py, RouterGaps
  std::vector<float> noise_bf16;  // per position: relative error that rounding alone causes
  std::vector<float> noise_int8;  // likewise with 8-bit experts
  std::vector<int> logit_rows;    // positions (from `first`) whose logits are stored
  std::vector<float> logits;      // [logit_rows, vocabulary]
  int num_positions() const { return static_cast<int>(top1.size()); }
};

struct TinyGolden {
  std::string config_json;
  std::vector<RandomTensor> tensors;
  std::string weights_sha256;
  int vocab_size = 0;
  std::vector<Sequence> sequences;
};

struct Answer {
  std::string question;
  std::vector<int32_t> prompt;
  std::vector<int32_t> tokens;                  // greedy continuation
  std::vector<float> margin;                    // per token of `tokens`
  std::vector<std::vector<int32_t>> best_ids;   // per token: ids of the best logits, descending …
  std::vector<std::vector<float>> best_logits;  // … and those logits
  std::vector<float> noise_int8;  // per token: relative error that 8-bit experts alone cause
};

struct PerplexityWindow {
  std::vector<int32_t> tokens;
  double nll = 0;  // of all tokens but the first
};

struct DemoGolden {
  std::vector<Answer> answers;
  std::vector<PerplexityWindow> windows;
  double perplexity = 0;
};

// `name` without folder and ending: "tiny_glm4_moe".
TinyGolden LoadTinyGolden(const std::string& name);
DemoGolden LoadDemoGolden();

}  // namespace atelier::golden
