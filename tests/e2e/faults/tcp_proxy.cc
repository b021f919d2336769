#include "tests/e2e/faults/tcp_proxy.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <utility>
#include <vector>

#include "libs/base/check.h"

namespace atelier::faults {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

int OpenSocket() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  ATELIER_CHECK(fd >= 0);
  return fd;
}

void SetOption(int fd, int level, int name) {
  const int on = 1;
  ATELIER_CHECK(::setsockopt(fd, level, name, &on, sizeof(on)) == 0);
}

// The peer gets a reset instead of an orderly end.
void CloseHard(int fd) {
  const linger now{1, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  ::close(fd);
}

}  // namespace

// Bytes that were read at one end and not yet written at the other.
struct TcpProxy::Pipe {
  int from = -1;
  int to = -1;
  std::array<char, 65536> buffer;
  size_t begin = 0;
  size_t end = 0;

  short ReadInterest() const { return static_cast<short>(begin == end ? POLLIN : 0); }
  short WriteInterest() const { return static_cast<short>(begin != end ? POLLOUT : 0); }

  // False when either end is gone.
  bool Move() {
    if (begin == end) {
      const ssize_t n = ::read(from, buffer.data(), buffer.size());
      if (n == 0 || (n < 0 && errno != EAGAIN)) return false;
      begin = 0;
      end = n > 0 ? static_cast<size_t>(n) : 0;
    }
    while (begin < end) {
      const ssize_t n = ::send(to, buffer.data() + begin, end - begin, MSG_NOSIGNAL);
      if (n < 0 && errno == EAGAIN) return true;
      if (n < 0) return false;
      begin += static_cast<size_t>(n);
    }
    return true;
  }
};

struct TcpProxy::Connection {
  Connection(int client_fd, int worker_fd) : client(client_fd), worker(worker_fd) {
    there.from = back.to = client;
    there.to = back.from = worker;
  }
  ~Connection() {
    CloseHard(client);
    CloseHard(worker);
  }
  Connection(const Connection&) = delete;

  const int client;
  const int worker;
  Pipe there;
  Pipe back;
};

TcpProxy::TcpProxy(int port, int target_port)
    : port_(port), target_port_(target_port), wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  {
    absl::MutexLock lock(&mutex_);
    Listen();
  }
  thread_ = std::thread([this] { Run(); });
}

TcpProxy::~TcpProxy() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  Wake();
  thread_.join();
  absl::MutexLock lock(&mutex_);
  ResetAll();
  if (listener_ >= 0) ::close(listener_);
  ::close(wake_fd_);
}

void TcpProxy::Cut() {
  absl::MutexLock lock(&mutex_);
  ResetAll();
  Wake();
}

void TcpProxy::Swallow(bool swallow) {
  absl::MutexLock lock(&mutex_);
  swallowing_ = swallow;
  Wake();
}

void TcpProxy::Refuse(bool refuse) {
  absl::MutexLock lock(&mutex_);
  ResetAll();
  if (refuse) {
    ::close(listener_);
    listener_ = -1;
  } else {
    Listen();
  }
  Wake();
}

void TcpProxy::Wake() {
  const uint64_t one = 1;
  ATELIER_CHECK(::write(wake_fd_, &one, sizeof(one)) == sizeof(one) || errno == EAGAIN);
}

void TcpProxy::Listen() {
  listener_ = OpenSocket();
  SetOption(listener_, SOL_SOCKET, SO_REUSEADDR);
  const sockaddr_in address = Loopback(port_);
  ATELIER_CHECK(::bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) ==
                0);
  ATELIER_CHECK(::listen(listener_, SOMAXCONN) == 0);
}

void TcpProxy::ResetAll() { connections_.clear(); }

void TcpProxy::Accept() {
  const int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (client < 0) return;
  const int worker = OpenSocket();
  SetOption(client, IPPROTO_TCP, TCP_NODELAY);
  SetOption(worker, IPPROTO_TCP, TCP_NODELAY);
  const sockaddr_in address = Loopback(target_port_);
  // It may be refused later: the first read says so.
  ::connect(worker, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  connections_.emplace_back(client, worker);
}

void TcpProxy::Run() {
  std::vector<pollfd> fds;
  while (true) {
    fds.assign({{wake_fd_, POLLIN, 0}});
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return;
      fds.push_back({listener_, POLLIN, 0});  // -1 is skipped by poll
      for (auto it = connections_.begin(); it != connections_.end() && !swallowing_; ++it) {
        fds.push_back({it->client,
                       static_cast<short>(it->there.ReadInterest() | it->back.WriteInterest()), 0});
        fds.push_back({it->worker,
                       static_cast<short>(it->back.ReadInterest() | it->there.WriteInterest()), 0});
      }
    }
    ::poll(fds.data(), fds.size(), -1);
    absl::MutexLock lock(&mutex_);
    uint64_t ignored = 0;
    const bool woken = ::read(wake_fd_, &ignored, sizeof(ignored)) > 0;
    if (listener_ >= 0 && (fds[1].revents & POLLIN) != 0) Accept();
    if (woken || swallowing_) continue;  // what was polled may be gone
    for (auto it = connections_.begin(); it != connections_.end();) {
      it = it->there.Move() && it->back.Move() ? std::next(it) : connections_.erase(it);
    }
  }
}

}  // namespace atelier::faults
