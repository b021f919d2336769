#include "libs/transport/shm_frames.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace atelier {
namespace {

constexpr uint32_t kMagic = 0x4d485341;  // "ASHM"
// Of this file and shm_layout.h. A peer of another version is refused.
constexpr uint16_t kVersion = 1;

struct Header {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  uint16_t type = 0;
  uint32_t body_bytes = 0;
};

struct OpeningBody {
  uint32_t num_slots = 0;
  uint32_t reserved = 0;
  uint64_t request_bytes = 0;
  uint64_t reply_bytes = 0;
  uint64_t spin_us = 0;
};

// Room for a descriptor, and for some more, which are closed.
constexpr size_t kControlBytes = CMSG_SPACE(8 * sizeof(int));

OwnedFd TakeDescriptor(msghdr& message) {
  OwnedFd taken;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      taken = OwnedFd(fd);
    }
  }
  return taken;
}

}  // namespace

OwnedFd& OwnedFd::operator=(OwnedFd&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = other.Release();
  }
  return *this;
}

int OwnedFd::Release() { return std::exchange(fd_, -1); }

void OwnedFd::Close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

PollWaker::PollWaker() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void PollWaker::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event_.get(), &one, sizeof(one));
}

void PollWaker::Clear() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t drained = ::read(event_.get(), &count, sizeof(count));
}

std::string EncodeOpening(const ShmOpening& opening) {
  const OpeningBody body{opening.geometry.num_slots, 0, opening.geometry.request_bytes,
                         opening.geometry.reply_bytes, opening.spin_us};
  return std::string(reinterpret_cast<const char*>(&body), sizeof(body));
}

absl::StatusOr<ShmOpening> DecodeOpening(absl::string_view text) {
  OpeningBody body;
  if (text.size() != sizeof(body)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the opening has ", text.size(), " bytes, not ", sizeof(body)));
  }
  std::memcpy(&body, text.data(), sizeof(body));
  if (body.spin_us > static_cast<uint64_t>(absl::ToInt64Microseconds(kMaxShmSpin))) {
    return absl::InvalidArgumentError(
        absl::StrCat("spin_us=", body.spin_us, " is above ", absl::FormatDuration(kMaxShmSpin)));
  }
  return ShmOpening{{body.num_slots, body.request_bytes, body.reply_bytes}, body.spin_us};
}

absl::Status SendShmFrame(int socket, ShmFrameType type, absl::string_view body, int fd) {
  Header header;
  header.type = static_cast<uint16_t>(type);
  header.body_bytes = static_cast<uint32_t>(body.size());
  iovec parts[2] = {{&header, sizeof(header)}, {const_cast<char*>(body.data()), body.size()}};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(c), &fd, sizeof(int));
  }
  const ssize_t sent = ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(sizeof(header) + body.size())) return absl::OkStatus();
  return absl::UnavailableError(
      sent >= 0 || errno == EAGAIN
          ? std::string("the peer does not read what is sent to it")
          : absl::StrCat("the peer closed the connection: ", std::strerror(errno)));
}

absl::Status ShmFrameReader::CheckHeader() const {
  Header header;
  if (bytes_.size() < sizeof(header)) return absl::OkStatus();
  std::memcpy(&header, bytes_.data(), sizeof(header));
  if (header.magic != kMagic) {
    return absl::InvalidArgumentError(
        "the peer does not speak this protocol: is it the socket of --shm-listen?");
  }
  if (header.version != kVersion) {
    return absl::InvalidArgumentError(absl::StrCat("the peer speaks version ", header.version,
                                                   " of the protocol, this side ", kVersion,
                                                   "; run the same release on both"));
  }
  if (header.body_bytes > max_body_bytes_) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of ", header.body_bytes, " bytes; at most ", max_body_bytes_));
  }
  return absl::OkStatus();
}

absl::Status ShmFrameReader::Read(int socket) {
  while (true) {
    char buffer[4096];
    iovec part{buffer, sizeof(buffer)};
    alignas(cmsghdr) char control[kControlBytes];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return absl::OkStatus();
    if (got <= 0) return absl::UnavailableError("the peer closed the connection");
    OwnedFd fd = TakeDescriptor(message);
    if (fd.valid()) fd_ = std::move(fd);
    bytes_.append(buffer, static_cast<size_t>(got));
    if (absl::Status status = CheckHeader(); !status.ok()) return status;
    // No more than one frame and a bit, however much a peer sends.
    if (bytes_.size() > sizeof(Header) + max_body_bytes_) return absl::OkStatus();
  }
}

std::optional<ShmFrame> ShmFrameReader::Next() {
  Header header;
  if (bytes_.size() < sizeof(header) || !CheckHeader().ok()) return std::nullopt;
  std::memcpy(&header, bytes_.data(), sizeof(header));
  if (bytes_.size() < sizeof(header) + header.body_bytes) return std::nullopt;
  ShmFrame frame;
  frame.type = static_cast<ShmFrameType>(header.type);
  frame.body = bytes_.substr(sizeof(header), header.body_bytes);
  // The one message that brings a descriptor is the last of a handshake.
  if (frame.type == ShmFrameType::kSegment) frame.fd = std::move(fd_);
  bytes_.erase(0, sizeof(header) + header.body_bytes);
  return frame;
}

}  // namespace atelier
