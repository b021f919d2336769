#include "tests/e2e/faults/link.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

#include "absl/time/clock.h"
#include "libs/base/check.h"

namespace atelier::faults {
namespace {

constexpr size_t kLargestPacket = 65536;

}  // namespace

Link::Link(int near_fd, int far_fd, uint64_t seed)
    : from_{near_fd, far_fd},
      to_{far_fd, near_fd},
      seed_(seed),
      stop_fd_(::eventfd(0, EFD_CLOEXEC)) {
  for (const Direction direction : {kToFar, kToNear}) {
    threads_.emplace_back([this, direction] { Run(direction); });
  }
}

Link::~Link() {
  const uint64_t one = 1;
  ATELIER_CHECK(::write(stop_fd_, &one, sizeof(one)) == sizeof(one));
  for (std::thread& thread : threads_) thread.join();
  for (const int fd : from_) ::close(fd);
  ::close(stop_fd_);
}

void Link::SetRules(Direction direction, const LinkRules& rules) {
  absl::MutexLock lock(&mutex_);
  rules_[direction] = rules;
}

void Link::SetBoth(const LinkRules& rules) {
  SetRules(kToFar, rules);
  SetRules(kToNear, rules);
}

bool Link::Await(int fd, const std::priority_queue<Packet>& waiting) {
  pollfd fds[] = {{fd, POLLIN, 0}, {stop_fd_, POLLIN, 0}};
  timespec timeout{};
  if (!waiting.empty()) {
    timeout = absl::ToTimespec(std::max(waiting.top().due - absl::Now(), absl::ZeroDuration()));
  }
  ::ppoll(fds, 2, waiting.empty() ? nullptr : &timeout, nullptr);
  return fds[1].revents == 0;
}

void Link::Take(Direction direction, uint64_t* count, std::priority_queue<Packet>* waiting) {
  char buffer[kLargestPacket];
  for (ssize_t n = ::read(from_[direction], buffer, sizeof(buffer)); n > 0;
       n = ::read(from_[direction], buffer, sizeof(buffer))) {
    LinkRules rules;
    {
      absl::MutexLock lock(&mutex_);
      rules = rules_[direction];
    }
    const uint64_t order = (*count)++;
    const PacketFate fate = DecideFate(rules, seed_ + direction, order);
    for (int copy = 0; copy < fate.copies; ++copy) {
      waiting->push({absl::Now() + fate.delay, order, std::string(buffer, static_cast<size_t>(n))});
    }
  }
}

void Link::Run(Direction direction) {
  std::priority_queue<Packet> waiting;
  uint64_t count = 0;
  while (Await(from_[direction], waiting)) {
    Take(direction, &count, &waiting);
    while (!waiting.empty() && waiting.top().due <= absl::Now()) {
      const std::string& bytes = waiting.top().bytes;
      // A full device drops it, as a full network card would.
      if (::write(to_[direction], bytes.data(), bytes.size()) < 0 && errno != EAGAIN) {
        ATELIER_CHECK(errno == EINVAL || errno == EIO || errno == ENOBUFS);
      }
      waiting.pop();
    }
  }
}

}  // namespace atelier::faults
