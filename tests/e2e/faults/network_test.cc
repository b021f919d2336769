#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "tests/e2e/faults/link.h"
#include "tests/e2e/faults/tcp_proxy.h"

// The link between two socket pairs instead of TUN devices, and the proxy before an echo.

namespace atelier::faults {
namespace {

// The two ends that programs would see, and a link between them.
class LinkTest : public ::testing::Test {
 protected:
  LinkTest() {
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, near_), 0);
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, far_), 0);
    link_ = std::make_unique<Link>(near_[1], far_[1], 7);
  }
  ~LinkTest() override {
    link_.reset();
    ::close(near_[0]);
    ::close(far_[0]);
  }
  static void Send(int fd, const std::string& packet) {
    EXPECT_EQ(::write(fd, packet.data(), packet.size()), static_cast<ssize_t>(packet.size()));
  }
  // The next packet; empty when none comes within `ms`.
  static std::string Receive(int fd, int ms) {
    pollfd waiting{fd, POLLIN, 0};
    if (::poll(&waiting, 1, ms) != 1) return "";
    char buffer[64];
    const ssize_t n = ::read(fd, buffer, sizeof(buffer));
    return n > 0 ? std::string(buffer, static_cast<size_t>(n)) : "";
  }

  static constexpr int kLong = 60000;
  static constexpr int kShort = 50;
  int near_[2];
  int far_[2];
  std::unique_ptr<Link> link_;
};

TEST_F(LinkTest, CarriesPacketsBothWays) {
  Send(near_[0], "there");
  EXPECT_EQ(Receive(far_[0], kLong), "there");
  Send(far_[0], "back");
  EXPECT_EQ(Receive(near_[0], kLong), "back");
}

TEST_F(LinkTest, BlocksOneWay) {
  LinkRules rules;
  rules.blocked = true;
  link_->SetRules(Link::kToFar, rules);
  Send(near_[0], "there");
  EXPECT_EQ(Receive(far_[0], kShort), "");
  Send(far_[0], "back");
  EXPECT_EQ(Receive(near_[0], kLong), "back");
  link_->Mend();
  Send(near_[0], "again");
  EXPECT_EQ(Receive(far_[0], kLong), "again");
}

TEST_F(LinkTest, DuplicatesAndDelays) {
  LinkRules rules;
  rules.duplicate = 1;
  rules.delay = absl::Milliseconds(20);
  link_->SetBoth(rules);
  const absl::Time begin = absl::Now();
  Send(near_[0], "x");
  EXPECT_EQ(Receive(far_[0], kLong), "x");
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(20));
  EXPECT_EQ(Receive(far_[0], kLong), "x");
  EXPECT_EQ(Receive(far_[0], kShort), "");
}

TEST_F(LinkTest, LetsPacketsOvertake) {
  LinkRules rules;
  rules.reorder = 0.5;
  link_->SetBoth(rules);
  std::string sent, received;
  for (char c = 'a'; c <= 'z'; ++c) {
    sent += c;
    Send(near_[0], std::string(1, c));
  }
  while (received.size() < sent.size()) received += Receive(far_[0], kLong);
  EXPECT_NE(received, sent);
  std::sort(received.begin(), received.end());
  EXPECT_EQ(received, sent);
}

// A listener on any port, and what connects to it through a proxy on the next free one.
class TcpProxyTest : public ::testing::Test {
 protected:
  TcpProxyTest() : listener_(Bound(0)), port_(PortOf(listener_)) {
    EXPECT_EQ(::listen(listener_, 8), 0);
    const int probe = Bound(0);
    proxy_port_ = PortOf(probe);
    ::close(probe);
    proxy_ = std::make_unique<TcpProxy>(proxy_port_, port_);
  }
  ~TcpProxyTest() override {
    proxy_.reset();
    ::close(listener_);
  }
  static sockaddr_in Address(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  static int Bound(int port) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in address = Address(port);
    EXPECT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }
  static int PortOf(int fd) {
    sockaddr_in address{};
    socklen_t size = sizeof(address);
    ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
    return ntohs(address.sin_port);
  }
  // -1 = refused.
  int Connect() const {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in address = Address(proxy_port_);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return fd;
    ::close(fd);
    return -1;
  }
  static bool Readable(int fd, int ms) {
    pollfd waiting{fd, POLLIN, 0};
    return ::poll(&waiting, 1, ms) == 1;
  }

  const int listener_;
  const int port_;
  int proxy_port_ = 0;
  std::unique_ptr<TcpProxy> proxy_;
};

TEST_F(TcpProxyTest, CarriesBytesBothWaysUntilItIsCut) {
  const int client = Connect();
  const int worker = ::accept(listener_, nullptr, nullptr);
  char buffer[8] = {};
  ASSERT_EQ(::write(client, "ping", 4), 4);
  ASSERT_EQ(::read(worker, buffer, sizeof(buffer)), 4);
  ASSERT_EQ(::write(worker, "pong!", 5), 5);
  ASSERT_EQ(::read(client, buffer, sizeof(buffer)), 5);
  proxy_->Cut();
  EXPECT_EQ(::read(client, buffer, sizeof(buffer)), -1);
  EXPECT_EQ(errno, ECONNRESET);
  EXPECT_EQ(::read(worker, buffer, sizeof(buffer)), -1);
  ::close(client);
  ::close(worker);
}

TEST_F(TcpProxyTest, SwallowsAndThenCarriesOn) {
  const int client = Connect();
  const int worker = ::accept(listener_, nullptr, nullptr);
  proxy_->Swallow(true);
  ASSERT_EQ(::write(client, "ping", 4), 4);
  EXPECT_FALSE(Readable(worker, 50));
  proxy_->Swallow(false);
  EXPECT_TRUE(Readable(worker, 60000));
  ::close(client);
  ::close(worker);
}

TEST_F(TcpProxyTest, RefusesUntilItMayListenAgain) {
  proxy_->Refuse(true);
  EXPECT_EQ(Connect(), -1);
  proxy_->Refuse(false);
  const int client = Connect();
  EXPECT_GE(client, 0);
  ::close(client);
}

}  // namespace
}  // namespace atelier::faults
