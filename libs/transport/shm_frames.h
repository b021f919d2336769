#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "libs/transport/shm_layout.h"

// What is said over the Unix socket beside the memory: few and small messages. The socket stays
// open as long as the memory is used, and its end is the end of the connection.

namespace atelier {

// An owned file descriptor.
class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept : fd_(other.Release()) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept;
  ~OwnedFd() { Close(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release();
  void Close();

 private:
  int fd_ = -1;
};

// Ends another thread's poll. Thread-safe.
class PollWaker {
 public:
  PollWaker();
  int fd() const { return event_.get(); }  // readable from Wake to Clear
  void Wake();
  void Clear();

 private:
  const OwnedFd event_;
};

enum class ShmFrameType : uint16_t {
  kDescribe = 1,     // client: nothing; answered by kDescription
  kOpen = 2,         // client: nothing; answered by kSegment. Once.
  kDescription = 3,  // worker: v1.DescribeResponse
  kSegment = 4,      // worker: ShmOpening, with the memory's descriptor
  kRefused = 5,      // worker: v1.Status; it closes
};

// The body of kSegment.
struct ShmOpening {
  ShmGeometry geometry;
  uint64_t spin_us = 0;  // how long either side may look before it sleeps
};
std::string EncodeOpening(const ShmOpening& opening);
// INVALID_ARGUMENT for another length or a spin above kMaxShmSpin.
absl::StatusOr<ShmOpening> DecodeOpening(absl::string_view body);
inline constexpr absl::Duration kMaxShmSpin = absl::Milliseconds(10);

struct ShmFrame {
  ShmFrameType type = ShmFrameType::kDescribe;
  std::string body;
  OwnedFd fd;  // that came along
};

// Never blocks: UNAVAILABLE when the other side has gone or does not read.
absl::Status SendShmFrame(int socket, ShmFrameType type, absl::string_view body, int fd = -1);

// Puts frames together from a socket that does not block.
class ShmFrameReader {
 public:
  // Frames with more than `max_body_bytes` are refused.
  explicit ShmFrameReader(size_t max_body_bytes) : max_body_bytes_(max_body_bytes) {}

  // Reads what has come. UNAVAILABLE at the end of the connection; INVALID_ARGUMENT for what no
  // peer of ours sends. Frames read before stay.
  absl::Status Read(int socket);
  std::optional<ShmFrame> Next();

 private:
  absl::Status CheckHeader() const;

  const size_t max_body_bytes_;
  std::string bytes_;
  OwnedFd fd_;
};

}  // namespace atelier
