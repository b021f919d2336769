#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "libs/device/ops.h"

namespace atelier {

// What the graph needs of an accelerator, in CUDA's sense: memory, in-order streams, events, and
// the model's operations. graph/ is written as if every stream call were asynchronous. Sizes and
// pointers are the caller's responsibility (a bug is a check failure); what the device can refuse
// (memory, a fault in earlier work) comes back as a status.

enum class MemoryKind {
  kDevice,      // read and written by device operations
  kPinnedHost,  // read and written by the host; source and target of copies
};

// Owned memory, 64-byte aligned, zeroed. Must outlive the work that uses it.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  virtual void* data() = 0;
  virtual size_t bytes() const = 0;

  template <typename T>
  T* As() {
    return static_cast<T*>(data());
  }
};

// A weight matrix [rows, columns] in the form that the device's Linear reads fastest. Immutable.
class DeviceMatrix {
 public:
  virtual ~DeviceMatrix() = default;
  virtual int rows() const = 0;
  virtual int columns() const = 0;
  virtual size_t bytes() const = 0;
};

// A point in a stream that others can wait for. Reusable after it was waited for.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Blocks the host until the work recorded before it is done. An event that was never recorded is
  // done.
  virtual absl::Status Synchronize() = 0;
};

// An in-order queue of work. Not thread-safe: one host thread drives a stream.
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;

  virtual void Copy(void* to, const void* from,
                    size_t bytes) = 0;  // between any two kinds of memory
  virtual void Zero(void* to, size_t bytes) = 0;
  virtual void Record(DeviceEvent& event) = 0;
  virtual void Wait(DeviceEvent& event) = 0;  // later work of this stream comes after `event`
  virtual void HostFunction(
      std::function<void()> function) = 0;  // runs in order; must not call the device
  // Blocks the host until all queued work is done; the first error of that work.
  virtual absl::Status Synchronize() = 0;

  virtual void Embed(const EmbedArgs& args) = 0;
  virtual void RmsNorm(const RmsNormArgs& args) = 0;
  virtual void HeadNorm(const HeadNormArgs& args) = 0;
  virtual void RopeTable(const RopeTableArgs& args) = 0;
  virtual void Rope(const RopeArgs& args) = 0;
  virtual void Linear(const LinearArgs& args) = 0;
  virtual void KvWrite(const KvWriteArgs& args) = 0;
  virtual void Attention(const AttentionArgs& args) = 0;
  virtual void SwiGlu(const SwiGluArgs& args) = 0;
  virtual void RouterLogits(const RouterLogitsArgs& args) = 0;
  virtual void Route(const RouteArgs& args) = 0;
  virtual void Add(const AddArgs& args) = 0;
  virtual void GateRows(const GateRowsArgs& args) = 0;
  virtual void GatherRows(const GatherRowsArgs& args) = 0;
  virtual void AddWeightedRows(const AddWeightedRowsArgs& args) = 0;
  virtual void ToBFloat16(const ToBFloat16Args& args) = 0;
};

// One accelerator (or the CPU). Thread-safe; outlives everything it made.
class Device {
 public:
  virtual ~Device() = default;

  virtual absl::string_view name() const = 0;  // for logs: "cpu avx512bf16 x2"
  // Bytes that can still be allocated, as far as the device knows.
  virtual int64_t FreeBytes() const = 0;
  // RESOURCE_EXHAUSTED naming the size.
  virtual absl::StatusOr<std::unique_ptr<DeviceBuffer>> Allocate(MemoryKind kind, size_t bytes) = 0;
  // The parts stacked on top of each other (equal columns); synchronous.
  virtual absl::StatusOr<std::unique_ptr<DeviceMatrix>> LoadMatrix(
      absl::Span<const HostMatrix> parts) = 0;
  virtual std::unique_ptr<DeviceStream> CreateStream() = 0;
  virtual std::unique_ptr<DeviceEvent> CreateEvent() = 0;
};

}  // namespace atelier
