#include "bench/support/ping_pong.h"

#include <arpa/inet.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>

namespace atelier {
namespace {

struct Side {
  std::function<void(const std::vector<char>&)> send;
  std::function<void(std::vector<char>&)> receive;
};

struct alignas(128) Turn {
  std::atomic<uint32_t> number{0};
};
struct Shared {
  Turn there, back;
  char* payload(size_t bytes, bool is_back) {
    return reinterpret_cast<char*>(this + 1) + (is_back ? bytes : 0);
  }
};

void Await(std::atomic<uint32_t>& word, uint32_t wanted, bool sleeps) {
  for (uint32_t seen = word.load(std::memory_order_acquire); seen != wanted;
       seen = word.load(std::memory_order_acquire)) {
    if (sleeps) {
      ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, nullptr, nullptr, 0);
    } else {
      __builtin_ia32_pause();
    }
  }
}

void Tell(std::atomic<uint32_t>& word, bool sleeps) {
  word.fetch_add(1, std::memory_order_release);
  if (sleeps) ::syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

Side SharedSide(Shared* shared, size_t bytes, bool is_child, bool sleeps) {
  Turn& out = is_child ? shared->back : shared->there;
  Turn& in = is_child ? shared->there : shared->back;
  Side side;
  side.send = [=, &out](const std::vector<char>& data) {
    std::memcpy(shared->payload(bytes, is_child), data.data(), bytes);
    Tell(out.number, sleeps);
  };
  side.receive = [=, &in, turn = uint32_t{0}](std::vector<char>& data) mutable {
    Await(in.number, ++turn, sleeps);
    std::memcpy(data.data(), shared->payload(bytes, !is_child), bytes);
  };
  return side;
}

Side SocketSide(int fd) {
  Side side;
  side.send = [fd](const std::vector<char>& data) {
    for (size_t done = 0; done < data.size();) {
      const ssize_t sent = ::send(fd, data.data() + done, data.size() - done, MSG_NOSIGNAL);
      if (sent <= 0) ::_exit(1);
      done += static_cast<size_t>(sent);
    }
  };
  side.receive = [fd](std::vector<char>& data) {
    for (size_t done = 0; done < data.size();) {
      const ssize_t got = ::recv(fd, data.data() + done, data.size() - done, 0);
      if (got <= 0) ::_exit(1);
      done += static_cast<size_t>(got);
    }
  };
  return side;
}

bool TcpPair(int fds[2]) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  fds[0] = ::socket(AF_INET, SOCK_STREAM, 0);
  const bool connected = ::bind(listener, any, length) == 0 && ::listen(listener, 1) == 0 &&
                         ::getsockname(listener, any, &length) == 0 &&
                         ::connect(fds[0], any, length) == 0;
  fds[1] = connected ? ::accept(listener, nullptr, nullptr) : -1;
  ::close(listener);
  const int on = 1;
  for (int i = 0; i < 2; ++i) ::setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return fds[1] >= 0;
}

std::vector<double> Measure(const std::function<Side(bool is_child)>& side_of, size_t bytes,
                            int rounds) {
  const int all = rounds + rounds / 10;
  std::vector<char> data(bytes, 'x');
  const pid_t child = ::fork();
  if (child < 0) return {};
  const Side side = side_of(child == 0);
  std::vector<double> seconds;
  for (int i = 0; i < all; ++i) {
    if (child == 0) {
      side.receive(data);
      side.send(data);
      continue;
    }
    const auto start = std::chrono::steady_clock::now();
    side.send(data);
    side.receive(data);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (i >= all - rounds) seconds.push_back(took.count());
  }
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  return seconds;
}

}  // namespace

std::vector<double> RawPingPong(RawWay way, size_t bytes, int rounds) {
  if (way == RawWay::kSharedSpin || way == RawWay::kSharedFutex) {
    const size_t size = sizeof(Shared) + 2 * bytes;
    void* const memory =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return {};
    auto* const shared = new (memory) Shared;
    const bool sleeps = way == RawWay::kSharedFutex;
    auto seconds = Measure(
        [&](bool is_child) { return SharedSide(shared, bytes, is_child, sleeps); }, bytes, rounds);
    ::munmap(memory, size);
    return seconds;
  }
  int fds[2] = {-1, -1};
  const bool made =
      way == RawWay::kTcpSocket ? TcpPair(fds) : ::socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0;
  std::vector<double> seconds;
  if (made) {
    seconds =
        Measure([&](bool is_child) { return SocketSide(fds[is_child ? 1 : 0]); }, bytes, rounds);
  }
  for (const int fd : fds) ::close(fd);
  return seconds;
}

}  // namespace atelier
