#include "libs/transport/shm_worker_server.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "libs/base/checked_math.h"
#include "libs/base/status_macros.h"
#include "libs/transport/codec.h"
#include "libs/transport/listen_address.h"
#include "libs/transport/shm_codec.h"
#include "libs/transport/shm_frames.h"
#include "libs/transport/shm_lane.h"
#include "libs/transport/status_codes.h"
#include "proto/atelier/v1/control.pb.h"

namespace atelier {
namespace {

// Clients send two words.
constexpr size_t kMaxBodyBytes = 64;
// From connecting to asking for the memory.
constexpr absl::Duration kHandshakeTimeout = absl::Seconds(10);

// One client, from accept to its end. Of the server's thread, but for `broken`.
struct Session {
  Session(OwnedFd fd, uint32_t user, absl::Time deadline)
      : socket(std::move(fd)), uid(user), handshake_deadline(deadline) {}

  OwnedFd socket;
  const uint32_t uid;  // of the client
  absl::Time handshake_deadline;
  ShmFrameReader frames{kMaxBodyBytes};
  std::shared_ptr<ShmLane> lane;
  absl::Mutex mutex;
  absl::Status broken ABSL_GUARDED_BY(mutex);

  absl::Status Broken() {
    absl::MutexLock lock(&mutex);
    return broken;
  }
};

absl::StatusOr<OwnedFd> ListenAt(const std::string& path, bool own_user_only) {
  Endpoint endpoint;
  endpoint.unix_path = path;
  ATELIER_RETURN_IF_ERROR(PrepareListenAddress(endpoint));
  OwnedFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": too long for a Unix socket"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const auto* bound = reinterpret_cast<const sockaddr*>(&address);
  // Nobody connects before listen, so nobody meets the mode that bind gives.
  if (!socket.valid() || ::bind(socket.get(), bound, sizeof(address)) != 0 ||
      ::chmod(path.c_str(), own_user_only ? 0600 : 0666) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", path, ": ", std::strerror(errno)));
  }
  return socket;
}

void Refuse(int socket, const absl::Status& status) {
  v1::Status refusal;
  ToWireStatus(status, &refusal);
  // A client that does not listen to it sees the end all the same.
  SendShmFrame(socket, ShmFrameType::kRefused, refusal.SerializeAsString()).IgnoreError();
}

class Server final : public ShmWorkerServer {
 public:
  Server(const ShmServerOptions& options, const ShmGeometry& geometry, WorkerHandler& handler,
         Clock& clock, const Logger& logger)
      : options_(options),
        geometry_(geometry),
        serving_{
            handler, clock,
            ForwardShape{options.hidden_size, options.num_experts, options.max_tokens_per_call},
            options.default_timeout, 0},
        logger_(logger) {
    spinners_.most = std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / 2);
    if (options_.allowed_uids.empty()) options_.allowed_uids.push_back(::geteuid());
  }
  ~Server() override { Shutdown(absl::ZeroDuration()); }

  absl::Status Listen() {
    const bool own = options_.allowed_uids == std::vector<uint32_t>{::geteuid()};
    ATELIER_ASSIGN_OR_RETURN(listener_, ListenAt(options_.path, own));
    logger_.Info("shm_listening", {Kv("path", options_.path), Kv("slots", geometry_.num_slots),
                                   Kv("request_bytes", geometry_.request_bytes),
                                   Kv("reply_bytes", geometry_.reply_bytes)});
    thread_ = std::thread([this] { Run(); });
    return absl::OkStatus();
  }

  int num_clients() const override {
    absl::MutexLock lock(&mutex_);
    return num_clients_;
  }
  void Shutdown(absl::Duration grace) override;

 private:
  bool Stopping() {
    absl::MutexLock lock(&mutex_);
    return stopping_;
  }
  void Run();
  void AwaitNews(std::vector<pollfd>& fds);
  void Accept();
  void NoteNobodyCameIn(int error);
  // The user id of who connected, if it may.
  absl::StatusOr<uint32_t> CheckPeer(int socket);
  absl::Status Serve(Session& session, bool readable);
  absl::Status Handle(Session& session, const ShmFrame& frame);
  absl::Status OpenLane(Session& session);
  void End(Session& session, const absl::Status& reason);
  void CountClients();

  ShmServerOptions options_;
  const ShmGeometry geometry_;
  const ForwardServing serving_;
  const Logger& logger_;
  PollWaker waker_;
  OwnedFd listener_;
  ShmSpinners spinners_;
  bool accepting_ = true;     // false for a moment when the process has no descriptor left
  bool turned_away_ = false;  // since the last client that came in
  std::vector<std::unique_ptr<Session>> sessions_;  // the thread's
  // Of clients that have gone, with calls that are still computed: their memory counts.
  std::vector<std::shared_ptr<ShmLane>> closed_;
  std::thread thread_;

  absl::Mutex shutdown_mutex_;
  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int num_clients_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time grace_ends_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
};

void Server::Shutdown(absl::Duration grace) {
  absl::MutexLock shutdown_lock(&shutdown_mutex_);
  if (!thread_.joinable()) return;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    grace_ends_ = serving_.clock.Now() + grace;
  }
  waker_.Wake();
  thread_.join();
}

void Server::Run() {
  std::vector<pollfd> fds;
  const auto may_end = [this] {
    absl::MutexLock lock(&mutex_);
    const bool idle = std::all_of(sessions_.begin(), sessions_.end(), [](const auto& session) {
      return session->lane == nullptr || session->lane->in_flight() == 0;
    });
    return stopping_ && (idle || serving_.clock.Now() >= grace_ends_);
  };
  while (!may_end()) {
    AwaitNews(fds);
    for (size_t i = 0; i < sessions_.size(); ++i) {
      const absl::Status status = Serve(*sessions_[i], fds[i + 2].revents != 0);
      if (!status.ok()) End(*sessions_[i], status);
    }
    std::erase_if(sessions_, [](const auto& session) { return !session->socket.valid(); });
    std::erase_if(closed_, [](const auto& lane) { return lane->in_flight() == 0; });
    if (fds[0].revents != 0) Accept();
    CountClients();
  }
  ::unlink(options_.path.c_str());
  listener_.Close();
  for (const auto& session : sessions_) {
    End(*session, absl::UnavailableError("the worker is shutting down"));
  }
  sessions_.clear();
  CountClients();
}

void Server::CountClients() {
  absl::MutexLock lock(&mutex_);
  num_clients_ = static_cast<int>(sessions_.size());
}

void Server::AwaitNews(std::vector<pollfd>& fds) {
  const bool stopping = Stopping();
  // A full house answers those who knock, too: they are told why they must go.
  fds = {{stopping || !accepting_ ? -1 : listener_.get(), POLLIN, 0}, {waker_.fd(), POLLIN, 0}};
  bool shaking_hands = false;
  for (const auto& session : sessions_) {
    fds.push_back({session->socket.get(), POLLIN, 0});
    shaking_hands |= session->lane == nullptr;
  }
  // The end of a call rings no bell here; a shutdown looks for it.
  const int timeout_ms = stopping ? 2 : !accepting_ ? 100 : shaking_hands ? 1000 : -1;
  accepting_ = true;
  ::poll(fds.data(), fds.size(), timeout_ms);
  waker_.Clear();
}

absl::StatusOr<uint32_t> Server::CheckPeer(int socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return absl::PermissionDeniedError("the kernel does not say whose process this is");
  }
  const auto& allowed = options_.allowed_uids;
  if (std::find(allowed.begin(), allowed.end(), peer.uid) == allowed.end()) {
    return absl::PermissionDeniedError(absl::StrCat(
        "user id ", peer.uid, " may not use this worker's memory; see --shm-allow-uids"));
  }
  if (sessions_.size() + closed_.size() >= static_cast<size_t>(options_.max_clients)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("shm_max_clients=", options_.max_clients, " clients are connected already"));
  }
  return peer.uid;
}

// Who knocks stays at the door, so poll would return at once, over and over.
void Server::NoteNobodyCameIn(int error) {
  accepting_ = error == EAGAIN || error == ECONNABORTED;
  if (accepting_ || turned_away_) return;
  turned_away_ = true;
  logger_.Warning("shm_client_waits",
                  {Kv("reason", absl::StrCat("accept: ", std::strerror(error)))});
}

void Server::Accept() {
  while (true) {
    OwnedFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) return NoteNobodyCameIn(errno);
    turned_away_ = false;
    const absl::StatusOr<uint32_t> uid = CheckPeer(socket.get());
    if (!uid.ok()) {
      logger_.Warning("shm_client_refused", {Kv("reason", uid.status().message())});
      Refuse(socket.get(), uid.status());
      continue;
    }
    sessions_.push_back(std::make_unique<Session>(std::move(socket), *uid,
                                                  serving_.clock.Now() + kHandshakeTimeout));
  }
}

absl::Status Server::Serve(Session& session, bool readable) {
  ATELIER_RETURN_IF_ERROR(session.Broken());
  const absl::Status read = readable ? session.frames.Read(session.socket.get()) : absl::OkStatus();
  while (const std::optional<ShmFrame> frame = session.frames.Next()) {
    ATELIER_RETURN_IF_ERROR(Handle(session, *frame));
  }
  ATELIER_RETURN_IF_ERROR(read);
  if (session.lane != nullptr || serving_.clock.Now() < session.handshake_deadline) {
    return absl::OkStatus();
  }
  return absl::DeadlineExceededError("the client did not ask for its memory in time");
}

absl::Status Server::Handle(Session& session, const ShmFrame& frame) {
  switch (frame.type) {
    case ShmFrameType::kDescribe: {
      v1::DescribeResponse message;
      EncodeDescription(serving_.handler.Describe(), &message);
      return SendShmFrame(session.socket.get(), ShmFrameType::kDescription,
                          message.SerializeAsString());
    }
    case ShmFrameType::kOpen:
      return OpenLane(session);
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("the client sent a message of type ", static_cast<int>(frame.type)));
  }
}

absl::Status Server::OpenLane(Session& session) {
  if (session.lane != nullptr) return absl::InvalidArgumentError("the client opened twice");
  ShmPlacement placement = options_.placement;
  // A client can give the pages back (fallocate), and a huge page that cannot be had again is a
  // SIGBUS here: not in the hands of other users.
  if (session.uid != ::geteuid()) placement.huge_pages_free = nullptr;
  ATELIER_ASSIGN_OR_RETURN(const std::shared_ptr<ShmSegment> segment,
                           ShmSegment::Create(geometry_, placement));
  session.lane = ShmLane::Start(serving_, segment, options_.spin, spinners_,
                                [this, &session](const absl::Status& status) {
                                  absl::MutexLock lock(&session.mutex);
                                  session.broken = status;
                                  waker_.Wake();
                                });
  const ShmOpening opening{geometry_,
                           static_cast<uint64_t>(absl::ToInt64Microseconds(options_.spin))};
  return SendShmFrame(session.socket.get(), ShmFrameType::kSegment, EncodeOpening(opening),
                      segment->fd());
}

void Server::End(Session& session, const absl::Status& reason) {
  // A client that closes has no fault, and nobody to tell.
  if (!absl::IsUnavailable(reason)) {
    logger_.Warning("shm_client_dropped", {Kv("reason", reason.message())});
    Refuse(session.socket.get(), reason);
  }
  if (session.lane != nullptr) {
    session.lane->Close();
    if (session.lane->in_flight() > 0) closed_.push_back(session.lane);
  }
  session.socket.Close();
}

}  // namespace

absl::StatusOr<ShmGeometry> ShmGeometryFor(const ShmServerOptions& options) {
  const int64_t hidden = options.hidden_size;
  const int64_t request_row = hidden * 2 + int64_t{options.top_k} * 8;
  const int64_t reply_row = hidden * 4 * options.shards_per_layer;
  const int64_t slots = std::max<int64_t>(options.num_slots, 1);
  const int64_t slot = options.bytes_per_client / slots - 4 * kShmOverheadBytes;
  const int64_t rows = std::min<int64_t>(slot / std::max<int64_t>(request_row + reply_row, 1),
                                         options.max_tokens_per_call);
  if (rows < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("shm_bytes_per_client=", options.bytes_per_client, ": ", slots,
                     " slots for one row of ", request_row, " bytes and its sums of ", reply_row,
                     " need ", slots * (request_row + reply_row + 4 * kShmOverheadBytes)));
  }
  const auto payload = [rows](int64_t row) {
    return static_cast<uint64_t>(RoundUp<int64_t>(rows * row + kShmOverheadBytes, 4096));
  };
  return ShmGeometry{options.num_slots, payload(request_row), payload(reply_row)};
}

absl::StatusOr<std::unique_ptr<ShmWorkerServer>> ShmWorkerServer::Start(
    const ShmServerOptions& options, WorkerHandler& handler, Clock& clock, const Logger& logger) {
  ATELIER_ASSIGN_OR_RETURN(const ShmGeometry geometry, ShmGeometryFor(options));
  auto server = std::make_unique<Server>(options, geometry, handler, clock, logger);
  ATELIER_RETURN_IF_ERROR(server->Listen());
  return server;
}

}  // namespace atelier
