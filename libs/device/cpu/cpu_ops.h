#pragma once

#include "libs/device/cpu/cpu_threads.h"
#include "libs/device/ops.h"
#include "libs/kernels/aligned_buffer.h"
#include "libs/kernels/kernel_table.h"
#include "libs/kernels/vector/row_kernels.h"

namespace atelier {

// What the operations of one stream compute with.
struct CpuContext {
  const CpuThreads& threads;
  const KernelTable& kernels;
  const RowKernels& rows;
  AlignedBuffer<uint8_t>& scratch;  // of one operation at a time
};

// The operations of ops.h, synchronous. A row's bits depend on that row alone.
namespace cpu_ops {

void Embed(const CpuContext& cpu, const EmbedArgs& args);
void RmsNorm(const CpuContext& cpu, const RmsNormArgs& args);
void HeadNorm(const CpuContext& cpu, const HeadNormArgs& args);
void RopeTable(const CpuContext& cpu, const RopeTableArgs& args);
void Rope(const CpuContext& cpu, const RopeArgs& args);
void Linear(const CpuContext& cpu, const LinearArgs& args);
void KvWrite(const CpuContext& cpu, const KvWriteArgs& args);
void Attention(const CpuContext& cpu, const AttentionArgs& args);
void SwiGlu(const CpuContext& cpu, const SwiGluArgs& args);
void RouterLogits(const CpuContext& cpu, const RouterLogitsArgs& args);
void Route(const CpuContext& cpu, const RouteArgs& args);
void Add(const CpuContext& cpu, const AddArgs& args);
void GateRows(const CpuContext& cpu, const GateRowsArgs& args);
void GatherRows(const CpuContext& cpu, const GatherRowsArgs& args);
void AddWeightedRows(const CpuContext& cpu, const AddWeightedRowsArgs& args);
void ToBFloat16(const CpuContext& cpu, const ToBFloat16Args& args);

}  // namespace cpu_ops
}  // namespace atelier
