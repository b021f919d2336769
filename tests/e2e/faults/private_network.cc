#include "tests/e2e/faults/private_network.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "libs/base/status_macros.h"

namespace atelier::faults {
namespace {

constexpr char kNearAddress[] = "10.77.0.1";
constexpr char kMask[] = "255.255.255.252";

absl::Status SystemError(absl::string_view what) {
  return absl::ErrnoToStatus(errno, absl::StrCat(what, " failed"));
}

ifreq Named(const char* interface) {
  ifreq request{};
  std::strncpy(request.ifr_name, interface, IFNAMSIZ - 1);
  return request;
}

absl::Status Set(int socket, unsigned long what, const char* interface, const char* address) {
  ifreq request = Named(interface);
  auto* value = reinterpret_cast<sockaddr_in*>(&request.ifr_addr);
  value->sin_family = AF_INET;
  ::inet_pton(AF_INET, address, &value->sin_addr);
  if (::ioctl(socket, what, &request) != 0) {
    return SystemError(absl::StrCat("giving ", interface, " the address ", address));
  }
  return absl::OkStatus();
}

// In the namespace of the calling thread; no address = the one it has.
absl::Status BringUp(const char* interface, const char* address) {
  const int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return SystemError("socket");
  const auto close_socket = absl::MakeCleanup([socket] { ::close(socket); });
  if (address != nullptr) {
    ATELIER_RETURN_IF_ERROR(Set(socket, SIOCSIFADDR, interface, address));
    ATELIER_RETURN_IF_ERROR(Set(socket, SIOCSIFNETMASK, interface, kMask));
  }
  ifreq request = Named(interface);
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  if (::ioctl(socket, SIOCSIFFLAGS, &request) != 0) {
    return SystemError(absl::StrCat("bringing up ", interface));
  }
  return absl::OkStatus();
}

absl::Status EnterNewNamespace() {
  if (::unshare(CLONE_NEWNET) != 0) return SystemError("unshare(CLONE_NEWNET)");
  return BringUp("lo", nullptr);
}

// The end of the link in the namespace of the calling thread: packets are read from and written to
// the file descriptor.
absl::StatusOr<int> OpenTun(const char* address) {
  const int fd = ::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return SystemError("opening /dev/net/tun");
  ifreq request = Named("link0");
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  absl::Status status =
      ::ioctl(fd, TUNSETIFF, &request) == 0 ? BringUp("link0", address) : SystemError("TUNSETIFF");
  if (status.ok()) return fd;
  ::close(fd);
  return status;
}

}  // namespace

absl::Status IsolateNetwork() { return EnterNewNamespace(); }

absl::StatusOr<std::unique_ptr<FarHost>> FarHost::Create(uint64_t seed) {
  std::unique_ptr<FarHost> host(new FarHost());
  absl::StatusOr<int> far = absl::UnknownError("");
  // Only this thread moves; the namespace lives on by the file descriptor.
  std::thread([&] {
    if (const absl::Status entered = EnterNewNamespace(); !entered.ok()) {
      far = entered;
      return;
    }
    host->namespace_ = ::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    far = OpenTun(address().c_str());
  }).join();
  ATELIER_RETURN_IF_ERROR(far.status());
  const absl::StatusOr<int> near = OpenTun(kNearAddress);
  if (!near.ok()) {
    ::close(*far);
    return near.status();
  }
  host->link_ = std::make_unique<Link>(*near, *far, seed);
  return host;
}

FarHost::~FarHost() {
  if (namespace_ >= 0) ::close(namespace_);
}

}  // namespace atelier::faults
