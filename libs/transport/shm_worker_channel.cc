#include "libs/transport/shm_worker_channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "libs/base/clock.h"
#include "libs/base/status_macros.h"
#include "libs/transport/codec.h"
#include "libs/transport/shm_client_stream.h"
#include "libs/transport/shm_frames.h"
#include "libs/transport/status_codes.h"
#include "proto/atelier/v1/control.pb.h"

namespace atelier {
namespace {

// Of a description.
constexpr size_t kMaxBodyBytes = size_t{1} << 20;

absl::StatusOr<OwnedFd> ConnectTo(const std::string& path) {
  OwnedFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": too long for a Unix socket"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  if (!socket.valid() ||
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot connect: ", std::strerror(errno)));
  }
  return socket;
}

// One thread reads the socket, from the connection's first byte to its end.
class ShmWorkerChannel final : public WorkerChannel {
 public:
  explicit ShmWorkerChannel(std::string path) : path_(std::move(path)) {}
  ~ShmWorkerChannel() override {
    CancelStream();
    if (reader_.joinable()) reader_.join();
  }

  void Describe(absl::Duration timeout, DescribeCallback done) override;
  void CancelDescribe() override { CancelStream(); }
  std::shared_ptr<CallStream> OpenStream(CallStream::Observer& observer) override;
  void CancelStream() override { End(absl::CancelledError("the client is closing")); }

 private:
  // Why the connection is over, if it is. The reader then ends.
  void End(const absl::Status& reason);
  absl::Status Ended();
  void Run();
  absl::Status AwaitInput();
  absl::Status Handle(ShmFrame frame);
  absl::Status HandleSegment(ShmFrame frame);
  void AnswerDescribe(absl::StatusOr<WorkerDescription> answer);

  const std::string path_;
  PollWaker waker_;
  OwnedFd socket_;  // set by the first Describe, before the reader starts
  std::thread reader_;
  ShmFrameReader frames_{kMaxBodyBytes};  // the reader's
  SystemClock clock_;

  absl::Mutex mutex_;
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);
  bool reader_done_ ABSL_GUARDED_BY(mutex_) = false;
  DescribeCallback describe_ ABSL_GUARDED_BY(mutex_);
  absl::Time describe_deadline_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  std::shared_ptr<ShmClientStream> stream_ ABSL_GUARDED_BY(mutex_);
};

void ShmWorkerChannel::End(const absl::Status& reason) {
  absl::MutexLock lock(&mutex_);
  if (ended_.ok()) ended_ = reason;
  waker_.Wake();
}

absl::Status ShmWorkerChannel::Ended() {
  absl::MutexLock lock(&mutex_);
  return ended_;
}

void ShmWorkerChannel::Describe(absl::Duration timeout, DescribeCallback done) {
  if (!reader_.joinable()) {
    absl::StatusOr<OwnedFd> socket = ConnectTo(path_);
    if (!socket.ok()) return done(socket.status());
    socket_ = *std::move(socket);
    reader_ = std::thread([this] { Run(); });
  }
  absl::Status over;
  {
    absl::MutexLock lock(&mutex_);
    if (!reader_done_) {
      describe_ = std::move(done);
      describe_deadline_ = clock_.Now() + timeout;
    }
    over = ended_;
  }
  if (done) return done(over);
  // What keeps it from leaving ends the connection, or the patience: the reader knows which.
  SendShmFrame(socket_.get(), ShmFrameType::kDescribe, "").IgnoreError();
  waker_.Wake();
}

void ShmWorkerChannel::AnswerDescribe(absl::StatusOr<WorkerDescription> answer) {
  DescribeCallback done;
  {
    absl::MutexLock lock(&mutex_);
    done = std::exchange(describe_, nullptr);
    describe_deadline_ = absl::InfiniteFuture();
  }
  if (done) done(std::move(answer));
}

std::shared_ptr<CallStream> ShmWorkerChannel::OpenStream(CallStream::Observer& observer) {
  auto stream = std::make_shared<ShmClientStream>(
      observer, [this](const absl::Status& status) { End(status); });
  bool closes = false;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    closes = reader_done_;
    status = ended_;
    // Before the worker is asked: its answer may be read before the asking returns.
    if (!closes) stream_ = stream;
  }
  if (closes) {
    stream->Close(status);
    return stream;
  }
  status = SendShmFrame(socket_.get(), ShmFrameType::kOpen, "");
  if (!status.ok()) End(status);  // the reader closes the stream
  return stream;
}

void ShmWorkerChannel::Run() {
  absl::Status status;
  while (status.ok()) {
    status = AwaitInput();
    if (status.ok()) status = frames_.Read(socket_.get());
    // Also what came before the end: it may say why.
    while (std::optional<ShmFrame> frame = frames_.Next()) {
      const absl::Status handled = Handle(*std::move(frame));
      if (handled.ok()) continue;
      status = handled;
      break;
    }
  }
  std::shared_ptr<ShmClientStream> stream;
  {
    absl::MutexLock lock(&mutex_);
    if (ended_.ok()) ended_ = status;
    status = ended_;
    reader_done_ = true;
    stream = stream_;
  }
  AnswerDescribe(status);
  // The worker sees the end at once, whoever else still holds this.
  ::shutdown(socket_.get(), SHUT_RDWR);
  if (stream != nullptr) stream->Close(status);
}

absl::Status ShmWorkerChannel::AwaitInput() {
  absl::Time deadline;
  {
    absl::MutexLock lock(&mutex_);
    if (!ended_.ok()) return ended_;
    deadline = describe_deadline_;
  }
  int timeout_ms = -1;
  if (deadline != absl::InfiniteFuture()) {
    const absl::Duration left = std::max(deadline - clock_.Now(), absl::ZeroDuration());
    timeout_ms = static_cast<int>(absl::ToInt64Milliseconds(left)) + 1;
  }
  pollfd fds[2] = {{socket_.get(), POLLIN, 0}, {waker_.fd(), POLLIN, 0}};
  ::poll(fds, 2, timeout_ms);
  waker_.Clear();
  if (clock_.Now() >= deadline) {
    AnswerDescribe(absl::DeadlineExceededError("it does not answer Describe"));
  }
  return Ended();
}

absl::Status ShmWorkerChannel::Handle(ShmFrame frame) {
  switch (frame.type) {
    case ShmFrameType::kDescription: {
      v1::DescribeResponse message;
      if (!message.ParseFromString(frame.body)) {
        return absl::InternalError("its description is no DescribeResponse");
      }
      AnswerDescribe(DecodeDescription(message));
      return absl::OkStatus();
    }
    case ShmFrameType::kSegment:
      return HandleSegment(std::move(frame));
    case ShmFrameType::kRefused: {
      v1::Status refusal;
      absl::Status status = absl::UnknownError("it gave no reason");
      if (refusal.ParseFromString(frame.body)) status = FromWireStatus(refusal);
      return status.ok() ? absl::InternalError("it refused without an error") : status;
    }
    default:
      return absl::InternalError(
          absl::StrCat("it sent a message of type ", static_cast<int>(frame.type)));
  }
}

absl::Status ShmWorkerChannel::HandleSegment(ShmFrame frame) {
  std::shared_ptr<ShmClientStream> stream;
  {
    absl::MutexLock lock(&mutex_);
    stream = stream_;
  }
  if (stream == nullptr || !frame.fd.valid() || stream->is_open()) {
    return absl::InternalError("it sent memory that was not asked for, or none");
  }
  const absl::StatusOr<ShmOpening> opening = DecodeOpening(frame.body);
  ATELIER_RETURN_IF_ERROR(Annotate(opening.status(), "its shared memory"));
  absl::StatusOr<std::shared_ptr<ShmSegment>> segment =
      ShmSegment::Open(frame.fd.Release(), opening->geometry);
  ATELIER_RETURN_IF_ERROR(Annotate(segment.status(), "its shared memory"));
  stream->Open(*std::move(segment), absl::Microseconds(static_cast<int64_t>(opening->spin_us)));
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<WorkerChannel> OpenShmChannel(const std::string& address) {
  return std::make_unique<ShmWorkerChannel>(address.substr(kShmScheme.size()));
}

}  // namespace atelier
