#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "libs/device/cpu/cpu_device.h"
#include "libs/device/cpu/cpu_ops.h"
#include "libs/device/device.h"

namespace atelier {

class CpuStream;

// Remembers the place in a stream's queue; waiting runs that stream up to there.
class CpuEvent final : public DeviceEvent {
 public:
  absl::Status Synchronize() override;

 private:
  friend class CpuStream;
  CpuStream* stream_ = nullptr;
  int64_t sequence_ = 0;
};

// A stream of the CPU device: runs work when it is queued, or (deferred mode) when somebody waits
// for it.
class CpuStream final : public DeviceStream {
 public:
  // All references outlive the stream.
  CpuStream(const CpuThreads& threads, const KernelTable& kernels, const RowKernels& rows,
            CpuDeviceOptions::Mode mode)
      : context_{threads, kernels, rows, scratch_}, mode_(mode) {}

  void Copy(void* to, const void* from, size_t bytes) override;
  void Zero(void* to, size_t bytes) override;
  void Record(DeviceEvent& event) override;
  void Wait(DeviceEvent& event) override;
  void HostFunction(std::function<void()> function) override { Queue(std::move(function)); }
  absl::Status Synchronize() override;

  void Embed(const EmbedArgs& args) override { QueueOp(cpu_ops::Embed, args); }
  void RmsNorm(const RmsNormArgs& args) override { QueueOp(cpu_ops::RmsNorm, args); }
  void HeadNorm(const HeadNormArgs& args) override { QueueOp(cpu_ops::HeadNorm, args); }
  void RopeTable(const RopeTableArgs& args) override { QueueOp(cpu_ops::RopeTable, args); }
  void Rope(const RopeArgs& args) override { QueueOp(cpu_ops::Rope, args); }
  void Linear(const LinearArgs& args) override { QueueOp(cpu_ops::Linear, args); }
  void KvWrite(const KvWriteArgs& args) override { QueueOp(cpu_ops::KvWrite, args); }
  void Attention(const AttentionArgs& args) override { QueueOp(cpu_ops::Attention, args); }
  void SwiGlu(const SwiGluArgs& args) override { QueueOp(cpu_ops::SwiGlu, args); }
  void RouterLogits(const RouterLogitsArgs& args) override { QueueOp(cpu_ops::RouterLogits, args); }
  void Route(const RouteArgs& args) override { QueueOp(cpu_ops::Route, args); }
  void Add(const AddArgs& args) override { QueueOp(cpu_ops::Add, args); }
  void GateRows(const GateRowsArgs& args) override { QueueOp(cpu_ops::GateRows, args); }
  void GatherRows(const GatherRowsArgs& args) override { QueueOp(cpu_ops::GatherRows, args); }
  void AddWeightedRows(const AddWeightedRowsArgs& args) override {
    QueueOp(cpu_ops::AddWeightedRows, args);
  }
  void ToBFloat16(const ToBFloat16Args& args) override { QueueOp(cpu_ops::ToBFloat16, args); }

  // Runs queued work up to and including number `sequence`.
  void RunUntil(int64_t sequence);

 private:
  template <typename Args>
  void QueueOp(void (*op)(const CpuContext&, const Args&), const Args& args) {
    if (mode_ == CpuDeviceOptions::Mode::kImmediate) return op(context_, args);
    Queue([this, op, args] { op(context_, args); });
  }
  void Queue(std::function<void()> work);

  AlignedBuffer<uint8_t> scratch_;
  CpuContext context_;
  CpuDeviceOptions::Mode mode_;
  std::deque<std::function<void()>> queue_;  // deferred mode: work finished_ + 1, finished_ + 2, …
  int64_t finished_ = 0;
};

}  // namespace atelier
