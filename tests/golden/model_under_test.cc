#include "tests/golden/model_under_test.h"

#include <algorithm>
#include <utility>

#include "libs/base/check.h"
#include "libs/base/clock.h"
#include "libs/base/log.h"
#include "libs/base/status_macros.h"
#include "libs/device/cpu/cpu_device.h"
#include "libs/metrics/metrics.h"
#include "libs/testing/local_experts.h"
#include "services/gpu-frontend/graph/memory_plan.h"
#include "services/gpu-frontend/graph/model_graph.h"

namespace atelier::golden {
namespace {

constexpr int kBlockSize = 16;

class GraphWithLocalExperts final : public ModelUnderTest {
 public:
  absl::Status Init(const Checkpoint& checkpoint, const RunOptions& options) {
    chunk_ = options.max_tokens_per_step;
    ATELIER_ASSIGN_OR_RETURN(
        device_, CreateCpuDevice({.num_threads = options.num_threads, .cpu_isa = options.cpu_isa}));
    ATELIER_ASSIGN_OR_RETURN(experts_,
                             testing::LocalExperts::Create(checkpoint, {.method = options.method,
                                                                        .cpu_isa = options.cpu_isa,
                                                                        .shards = options.shards}));
    GraphOptions graph;
    graph.block_size = kBlockSize;
    graph.kv_cache_bytes = options.kv_cache_tokens * KvBytesPerToken(checkpoint.config());
    graph.max_tokens_per_step = options.max_tokens_per_step;
    graph.device_experts = options.device_experts;
    ATELIER_ASSIGN_OR_RETURN(graph_, ModelGraph::Create(checkpoint, *device_, *experts_, graph,
                                                        clock_, logger_, metrics_));
    return absl::OkStatus();
  }

  absl::Status TeacherForce(absl::Span<const int32_t> tokens, int first,
                            const Visitor& visit) override {
    const std::vector<int32_t> blocks = Blocks(0, tokens.size());
    const int end = static_cast<int>(tokens.size());
    std::vector<float> logits;
    for (int start = 0; start < end; start += chunk_) {
      const int count = std::min(chunk_, end - start);
      const int wanted = std::clamp(start + count - first, 0, count);
      const SequenceStep step{
          tokens.subspan(static_cast<size_t>(start), static_cast<size_t>(count)), start, blocks,
          wanted};
      logits.resize(static_cast<size_t>(wanted) * vocab());
      ATELIER_RETURN_IF_ERROR(graph_->Step({step}, absl::MakeSpan(logits)));
      for (int row = 0; row < wanted; ++row) {
        visit(start + count - wanted + row, Row(logits, row));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::vector<float>>> TogetherInOneStep(
      const std::vector<std::vector<int32_t>>& sequences) override {
    const std::vector<std::vector<int32_t>> tables = BlockTables(sequences, 0);
    std::vector<SequenceStep> steps;
    size_t rows = 0;
    for (size_t i = 0; i < sequences.size(); ++i) {
      steps.push_back({sequences[i], 0, tables[i], static_cast<int>(sequences[i].size())});
      rows += sequences[i].size();
    }
    std::vector<float> logits(rows * vocab());
    ATELIER_RETURN_IF_ERROR(graph_->Step(steps, absl::MakeSpan(logits)));
    std::vector<std::vector<float>> split;
    auto begin = logits.begin();
    for (const std::vector<int32_t>& sequence : sequences) {
      const auto end = begin + static_cast<ptrdiff_t>(sequence.size() * vocab());
      split.emplace_back(begin, end);
      begin = end;
    }
    return split;
  }

  absl::StatusOr<std::vector<std::vector<int32_t>>> Greedy(
      const std::vector<std::vector<int32_t>>& prompts, int max_tokens, int32_t eos) override {
    const std::vector<std::vector<int32_t>> tables = BlockTables(prompts, max_tokens);
    std::vector<std::vector<int32_t>> texts(prompts.size());
    std::vector<float> logits(prompts.size() * vocab());
    // Prompts one by one: together they may exceed a step.
    for (size_t i = 0; i < prompts.size(); ++i) {
      ATELIER_RETURN_IF_ERROR(
          graph_->Step({{prompts[i], 0, tables[i], 1}}, absl::MakeSpan(logits)));
      texts[i].push_back(ArgMax(Row(logits, 0)));
    }
    for (int token = 1; token < max_tokens; ++token) {
      std::vector<size_t> live;
      std::vector<SequenceStep> steps;
      for (size_t i = 0; i < prompts.size(); ++i) {
        if (texts[i].back() == eos) continue;
        const int position = static_cast<int>(prompts[i].size()) + token - 1;
        steps.push_back({absl::MakeSpan(&texts[i].back(), 1), position, tables[i], 1});
        live.push_back(i);
      }
      if (live.empty()) break;
      ATELIER_RETURN_IF_ERROR(graph_->Step(steps, absl::MakeSpan(logits)));
      for (size_t row = 0; row < live.size(); ++row) {
        texts[live[row]].push_back(ArgMax(Row(logits, static_cast<int>(row))));
      }
    }
    return texts;
  }

 private:
  size_t vocab() const { return static_cast<size_t>(graph_->vocab_size()); }

  absl::Span<const float> Row(const std::vector<float>& logits, int row) const {
    return absl::MakeConstSpan(logits).subspan(static_cast<size_t>(row) * vocab(), vocab());
  }

  // Block numbers for `num_tokens`, from block `begin` on.
  static std::vector<int32_t> Blocks(size_t begin, size_t num_tokens) {
    std::vector<int32_t> blocks((num_tokens + kBlockSize - 1) / kBlockSize);
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<int32_t>(begin + i);
    return blocks;
  }

  std::vector<std::vector<int32_t>> BlockTables(const std::vector<std::vector<int32_t>>& prompts,
                                                int more_tokens) const {
    std::vector<std::vector<int32_t>> tables;
    size_t next = 0;
    for (const std::vector<int32_t>& prompt : prompts) {
      tables.push_back(Blocks(next, prompt.size() + static_cast<size_t>(more_tokens)));
      next += tables.back().size();
    }
    ATELIER_CHECK(next <= static_cast<size_t>(graph_->num_blocks()));
    return tables;
  }

  int chunk_ = 0;
  SystemClock clock_;
  Logger logger_{Severity::kWarning};
  prometheus::Registry registry_;
  FrontendMetrics metrics_{registry_};
  std::unique_ptr<Device> device_;
  std::unique_ptr<testing::LocalExperts> experts_;
  std::unique_ptr<ModelGraph> graph_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ModelUnderTest>> ModelUnderTest::Create(const Checkpoint& checkpoint,
                                                                       const RunOptions& options) {
  auto model = std::make_unique<GraphWithLocalExperts>();
  ATELIER_RETURN_IF_ERROR(model->Init(checkpoint, options));
  return model;
}

int32_t ArgMax(absl::Span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace atelier::golden
