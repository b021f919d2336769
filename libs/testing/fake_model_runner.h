#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "services/gpu-frontend/engine/model_runner.h"

namespace atelier::testing {

struct FakeModelOptions {
  int vocab_size = 64;
  int max_context = 256;
  int block_size = 4;
  int num_blocks = 64;
};

// A model whose logits are a fixed function of all tokens up to a position. It keeps the tokens in
// KV blocks, as a real one keeps keys and values, and reads them back through the block table: a
// wrong table, a lost or overwritten block or a wrong position changes the text. What a step must
// never hold (two writers of a slot, a table too short, a position unwritten) it refuses with
// INTERNAL. Called from one thread at a time.
class FakeModelRunner final : public ModelRunner {
 public:
  // Called before each step; a status that is not OK fails the step after its slots were spoilt.
  using Hook = std::function<absl::Status(absl::Span<const SequenceStep>)>;

  explicit FakeModelRunner(const FakeModelOptions& options = {})
      : options_(options),
        slots_(static_cast<size_t>(options.num_blocks) * static_cast<size_t>(options.block_size)) {}

  void set_before_step(Hook hook) { before_step_ = std::move(hook); }
  void SetInterrupt(std::function<bool()> interrupted) override {
    interrupted_ = std::move(interrupted);
  }
  int num_interrupted() const { return num_interrupted_; }

  int vocab_size() const override { return options_.vocab_size; }
  int max_context() const override { return options_.max_context; }
  int block_size() const override { return options_.block_size; }
  int num_blocks() const override { return options_.num_blocks; }

  // The row of logits that follows `tokens`, in [-4, 4).
  std::vector<float> LogitsAfter(absl::Span<const int32_t> tokens) const {
    uint64_t state = 1;
    for (const int32_t token : tokens) state = Mix(state + static_cast<uint64_t>(token));
    std::vector<float> row(static_cast<size_t>(options_.vocab_size));
    for (size_t v = 0; v < row.size(); ++v) {
      row[v] = static_cast<float>(Mix(state ^ (v << 32)) >> 40) * 0x1p-21f - 4.0f;
    }
    return row;
  }

  absl::Status Step(absl::Span<const SequenceStep> steps, absl::Span<float> logits) override {
    absl::Status verdict = before_step_ ? before_step_(steps) : absl::OkStatus();
    if (verdict.ok() && interrupted_ && interrupted_()) {
      ++num_interrupted_;
      verdict = absl::CancelledError("interrupted");
    }
    std::set<size_t> written;
    for (const SequenceStep& step : steps) {
      if (absl::Status s = Write(step, !verdict.ok(), written); !s.ok()) return s;
    }
    if (!verdict.ok()) return verdict;
    size_t out = 0;
    for (const SequenceStep& step : steps) {
      if (absl::Status s = WriteLogits(step, logits, out); !s.ok()) return s;
    }
    if (out != logits.size()) return absl::InternalError("logits are of another size");
    return absl::OkStatus();
  }

 private:
  struct Slot {
    int32_t token = -1;
    int position = -1;
  };

  static uint64_t Mix(uint64_t x) {
    x *= 0xff51afd7ed558ccdu;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
    return x ^ (x >> 33);
  }

  // Index of the slot of a position, or slots_.size() where the table has none.
  size_t SlotOf(const SequenceStep& step, int position) const {
    const size_t entry = static_cast<size_t>(position / options_.block_size);
    if (entry >= step.block_table.size()) return slots_.size();
    const int32_t block = step.block_table[entry];
    if (block < 0 || block >= options_.num_blocks) return slots_.size();
    return static_cast<size_t>(block) * static_cast<size_t>(options_.block_size) +
           static_cast<size_t>(position % options_.block_size);
  }

  absl::Status Write(const SequenceStep& step, bool spoil, std::set<size_t>& written) {
    const int end = step.start + static_cast<int>(step.tokens.size());
    if (step.tokens.empty() || step.start < 0 || end > options_.max_context ||
        step.num_logits < 0 || step.num_logits > static_cast<int>(step.tokens.size())) {
      return absl::InternalError(absl::StrCat("bad step: start=", step.start, " end=", end,
                                              " num_logits=", step.num_logits));
    }
    for (int position = step.start; position < end; ++position) {
      const size_t slot = SlotOf(step, position);
      if (slot == slots_.size()) {
        return absl::InternalError(absl::StrCat("no slot for position ", position));
      }
      if (!written.insert(slot).second) {
        return absl::InternalError(absl::StrCat("slot ", slot, " is written twice in a step"));
      }
      const int32_t token = step.tokens[static_cast<size_t>(position - step.start)];
      if (token < 0 || token >= options_.vocab_size) {
        return absl::InternalError(absl::StrCat("token ", token, " outside the vocabulary"));
      }
      slots_[slot] = spoil ? Slot{} : Slot{token, position};
    }
    return absl::OkStatus();
  }

  absl::Status WriteLogits(const SequenceStep& step, absl::Span<float> logits, size_t& out) const {
    std::vector<int32_t> tokens;
    const int end = step.start + static_cast<int>(step.tokens.size());
    for (int position = 0; position < end; ++position) {
      const size_t slot = SlotOf(step, position);
      if (slot == slots_.size() || slots_[slot].position != position) {
        return absl::InternalError(absl::StrCat("position ", position, " reads another's slot"));
      }
      tokens.push_back(slots_[slot].token);
      if (position < end - step.num_logits) continue;
      const std::vector<float> row = LogitsAfter(tokens);
      if (out + row.size() > logits.size()) return absl::InternalError("too few logits");
      std::copy(row.begin(), row.end(), logits.begin() + static_cast<std::ptrdiff_t>(out));
      out += row.size();
    }
    return absl::OkStatus();
  }

  const FakeModelOptions options_;
  std::vector<Slot> slots_;
  Hook before_step_;
  std::function<bool()> interrupted_;
  std::atomic<int> num_interrupted_ = 0;
};

}  // namespace atelier::testing
