#include "libs/device/cpu/cpu_stream.h"

#include <cstring>
#include <utility>

namespace atelier {

absl::Status CpuEvent::Synchronize() {
  if (stream_ != nullptr) stream_->RunUntil(sequence_);
  return absl::OkStatus();
}

void CpuStream::Queue(std::function<void()> work) {
  if (mode_ == CpuDeviceOptions::Mode::kImmediate) return work();
  queue_.push_back(std::move(work));
}

void CpuStream::RunUntil(int64_t sequence) {
  while (finished_ < sequence && !queue_.empty()) {
    const std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    work();
    ++finished_;
  }
}

void CpuStream::Copy(void* to, const void* from, size_t bytes) {
  Queue([to, from, bytes] { std::memcpy(to, from, bytes); });
}

void CpuStream::Zero(void* to, size_t bytes) {
  Queue([to, bytes] { std::memset(to, 0, bytes); });
}

void CpuStream::Record(DeviceEvent& event) {
  auto& cpu_event = static_cast<CpuEvent&>(event);
  cpu_event.stream_ = this;
  cpu_event.sequence_ = finished_ + static_cast<int64_t>(queue_.size());
}

void CpuStream::Wait(DeviceEvent& event) {
  // The place is taken now, as CUDA does: recording the event again later does not move it.
  Queue([at = static_cast<CpuEvent&>(event)]() mutable { (void)at.Synchronize(); });
}

absl::Status CpuStream::Synchronize() {
  RunUntil(finished_ + static_cast<int64_t>(queue_.size()));
  return absl::OkStatus();
}

}  // namespace atelier
