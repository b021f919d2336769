#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "libs/base/status_macros.h"
#include "services/gpu-frontend/loaded_model.h"

namespace atelier::testing {

// What a toy computes and how fast.
struct ToySpec {
  int vocab_size = 512;
  int max_context = 4096;
  int32_t eos_token_id = 2;
  int32_t bos_token_id = 1;
  absl::Duration step_time;  // slept in every step
  absl::Status status;       // what the experts' reachability is said to be
};

// A model without weights, for the real engine: the most likely next token after t is t + 1, in a
// circle; what a request must answer follows from its last prompt token.
class ToyRunner final : public ModelRunner {
 public:
  explicit ToyRunner(const ToySpec& spec) : spec_(spec) {}

  int vocab_size() const override { return spec_.vocab_size; }
  int max_context() const override { return spec_.max_context; }
  int block_size() const override { return 16; }
  int num_blocks() const override { return 4 * (spec_.max_context / 16); }

  absl::Status Step(absl::Span<const SequenceStep> steps, absl::Span<float> logits) override {
    if (spec_.step_time > absl::ZeroDuration()) absl::SleepFor(spec_.step_time);
    std::fill(logits.begin(), logits.end(), 0.0f);
    size_t row = 0;
    for (const SequenceStep& step : steps) {
      const size_t first = step.tokens.size() - static_cast<size_t>(step.num_logits);
      for (size_t i = first; i < step.tokens.size(); ++i, ++row) {
        const auto next = static_cast<size_t>((step.tokens[i] + 1) % spec_.vocab_size);
        logits[row * static_cast<size_t>(spec_.vocab_size) + next] = 20.0f;
      }
    }
    return spec_.status;
  }

 private:
  const ToySpec spec_;
};

class ToyModel final : public LoadedModel {
 public:
  static absl::StatusOr<std::unique_ptr<LoadedModel>> Load(const ToySpec& spec,
                                                           const FrontendOptions& options,
                                                           const LoaderContext& context) {
    auto model = std::make_unique<ToyModel>(spec);
    EngineOptions engine;
    engine.max_running_requests = options.max_running_requests;
    engine.max_queued_requests = options.max_queued_requests;
    engine.chunked_prefill_size = options.chunked_prefill_size;
    engine.eos_token_ids = {spec.eos_token_id};
    ATELIER_ASSIGN_OR_RETURN(model->engine_, Engine::Create(engine, model->runner_, context.clock,
                                                            context.logger, context.metrics));
    return model;
  }

  explicit ToyModel(const ToySpec& spec) : spec_(spec), runner_(spec) {}

  Engine& engine() override { return *engine_; }
  ServedModel Describe() const override {
    ServedModel model;
    model.max_context = spec_.max_context;
    model.config.model_type = "toy";
    model.config.architectures = {"ToyForCausalLM"};
    model.config.vocab_size = spec_.vocab_size;
    model.config.bos_token_id = spec_.bos_token_id;
    model.config.eos_token_ids = {spec_.eos_token_id};
    return model;
  }
  absl::Status Ready() const override { return spec_.status; }

 private:
  const ToySpec spec_;
  ToyRunner runner_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace atelier::testing
