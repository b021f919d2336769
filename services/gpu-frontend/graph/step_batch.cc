#include "services/gpu-frontend/graph/step_batch.h"

#include <algorithm>

#include "libs/base/check.h"

namespace atelier {
namespace {

void AddRow(const SequenceStep& step, int offset, int sequence, int block_size, Workspace& space,
            StepBatch& batch) {
  const int position = step.start + offset;
  const size_t row = static_cast<size_t>(batch.rows++);
  const int32_t block = step.block_table[static_cast<size_t>(position / block_size)];
  space.h_tokens->As<int32_t>()[row] = step.tokens[static_cast<size_t>(offset)];
  space.h_positions->As<int32_t>()[row] = position;
  space.h_sequences->As<int32_t>()[row] = sequence;
  space.h_slots->As<int64_t>()[row] = int64_t{block} * block_size + position % block_size;
  if (offset >= static_cast<int>(step.tokens.size()) - step.num_logits) {
    space.h_logit_rows->As<int32_t>()[batch.num_logits++] = static_cast<int32_t>(row);
  }
}

void CheckStep(const SequenceStep& step, const StepLimits& limits, int block_size, int num_blocks) {
  const size_t end = static_cast<size_t>(step.start) + step.tokens.size();
  ATELIER_CHECK(step.start >= 0 && !step.tokens.empty());
  ATELIER_CHECK(step.num_logits >= 0 && static_cast<size_t>(step.num_logits) <= step.tokens.size());
  ATELIER_CHECK(step.block_table.size() * static_cast<size_t>(block_size) >= end);
  ATELIER_CHECK(step.block_table.size() <= static_cast<size_t>(limits.max_blocks));
  for (int32_t block : step.block_table) ATELIER_CHECK(block >= 0 && block < num_blocks);
  for (int32_t token : step.tokens) ATELIER_CHECK(token >= 0 && token < limits.vocab_size);
}

void Upload(DeviceStream& stream, DeviceBuffer& device, DeviceBuffer& host, size_t bytes) {
  stream.Copy(device.data(), host.data(), bytes);
}

}  // namespace

StepBatch UploadStep(absl::Span<const SequenceStep> steps, const StepLimits& limits, int block_size,
                     int num_blocks, Workspace& space, DeviceStream& stream) {
  StepBatch batch;
  size_t rows = 0;
  for (const SequenceStep& step : steps) {
    CheckStep(step, limits, block_size, num_blocks);
    rows += step.tokens.size();
    batch.max_blocks = std::max(batch.max_blocks, static_cast<int>(step.block_table.size()));
    batch.prefill = batch.prefill || step.tokens.size() > 1;
  }
  ATELIER_CHECK(rows <= static_cast<size_t>(limits.max_tokens) &&
                steps.size() <= static_cast<size_t>(limits.max_sequences));
  for (size_t s = 0; s < steps.size(); ++s) {
    const absl::Span<const int32_t> table = steps[s].block_table;
    std::copy(table.begin(), table.end(),
              space.h_block_tables->As<int32_t>() + s * static_cast<size_t>(batch.max_blocks));
    for (int offset = 0; offset < static_cast<int>(steps[s].tokens.size()); ++offset) {
      AddRow(steps[s], offset, static_cast<int>(s), block_size, space, batch);
    }
  }
  Upload(stream, *space.tokens, *space.h_tokens, rows * sizeof(int32_t));
  Upload(stream, *space.positions, *space.h_positions, rows * sizeof(int32_t));
  Upload(stream, *space.sequences, *space.h_sequences, rows * sizeof(int32_t));
  Upload(stream, *space.slots, *space.h_slots, rows * sizeof(int64_t));
  Upload(stream, *space.block_tables, *space.h_block_tables,
         steps.size() * static_cast<size_t>(batch.max_blocks) * sizeof(int32_t));
  Upload(stream, *space.logit_rows, *space.h_logit_rows,
         static_cast<size_t>(batch.num_logits) * sizeof(int32_t));
  return batch;
}

}  // namespace atelier
