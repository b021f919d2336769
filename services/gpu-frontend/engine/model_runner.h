#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace atelier {

// One sequence's part of a step: `tokens` new tokens at positions [start, start + tokens.size()),
// whose keys and values go into the blocks of `block_table` (position p lives in block
// block_table[p / block_size], slot p % block_size).
struct SequenceStep {
  absl::Span<const int32_t> tokens;
  int start = 0;
  absl::Span<const int32_t> block_table;
  // Rows of logits wanted: the last `num_logits` tokens of this step (0 = none, e.g. a prefill
  // chunk that is not the last).
  int num_logits = 0;
};

// What the engine needs of a model: a step over a batch of sequences. Implemented by graph/; tests
// use a fake. Called from one thread at a time (the engine's).
class ModelRunner {
 public:
  virtual ~ModelRunner() = default;

  virtual int vocab_size() const = 0;
  virtual int max_context() const = 0;
  virtual int block_size() const = 0;  // tokens per KV block
  virtual int num_blocks() const = 0;  // from the byte budget

  // Computes all steps in one pass. Writes one row of `vocab_size()` fp32 logits per wanted token,
  // in the order of `steps`, to `logits`. On an error (UNAVAILABLE: experts gone) nothing of the
  // step counts: the engine may retry or end the requests; the KV blocks of earlier tokens stay
  // valid.
  virtual absl::Status Step(absl::Span<const SequenceStep> steps, absl::Span<float> logits) = 0;

  // `interrupted` is asked on Step's thread between parts of the work that take milliseconds
  // (layers); once it says true, Step gives up with CANCELLED, as after any other error. Null =
  // never asked. A runner whose steps are short may ignore it.
  virtual void SetInterrupt(std::function<bool()> /*interrupted*/) {}
};

}  // namespace atelier
