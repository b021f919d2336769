#include "libs/transport/listen_address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace atelier {
namespace {

std::string ErrnoText(int error) { return std::strerror(error); }

sockaddr_un UnixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  return address;
}

// 0 or the errno of `call` (bind or connect) on a fresh socket.
template <typename Call>
int TrySocket(int family, Call&& call) {
  const int fd = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  const absl::Cleanup close_fd = [fd] { ::close(fd); };
  return call(fd) == 0 ? 0 : errno;
}

int ConnectError(const std::string& path) {
  const sockaddr_un address = UnixAddress(path);
  return TrySocket(AF_UNIX, [&](int fd) {
    return ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  });
}

int BindError(const addrinfo& info) {
  return TrySocket(info.ai_family, [&](int fd) {
    const int on = 1;
    ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    const int bound = ::bind(fd, info.ai_addr, info.ai_addrlen);
    return bound == 0 ? ::listen(fd, 1) : bound;
  });
}

std::string WhyNotBoundTcp(const Endpoint& endpoint) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error =
      ::getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found);
  if (error != 0) return ::gai_strerror(error);
  const absl::Cleanup free_found = [found] { ::freeaddrinfo(found); };
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    if (const int bind_error = BindError(*info); bind_error != 0) return ErrnoText(bind_error);
  }
  return "it was taken for a moment (try again), or stands twice among the addresses to listen on";
}

std::string WhyNotBoundUnix(const std::string& path) {
  const sockaddr_un address = UnixAddress(path);
  const int error = TrySocket(AF_UNIX, [&](int fd) {
    return ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  });
  if (error == 0) ::unlink(path.c_str());
  return error == 0 ? "it was taken for a moment (try again), or stands twice among the addresses "
                      "to listen on"
                    : ErrnoText(error);
}

}  // namespace

absl::Status PrepareListenAddress(const Endpoint& endpoint) {
  if (!endpoint.is_unix()) return absl::OkStatus();
  const std::string& path = endpoint.unix_path;
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return absl::OkStatus();
  if (!S_ISSOCK(status.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(endpoint.ToString(),
                     ": the file exists and is no socket; remove it or listen "
                     "elsewhere"));
  }
  // gRPC would remove even the socket of a server that is alive.
  const int error = ConnectError(path);
  if (error == 0 || error == EAGAIN) {
    return absl::UnavailableError(
        absl::StrCat(endpoint.ToString(), ": another server listens there"));
  }
  if (error != ECONNREFUSED) {
    return absl::UnavailableError(absl::StrCat(endpoint.ToString(), ": ", ErrnoText(error)));
  }
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    return absl::UnavailableError(
        absl::StrCat(endpoint.ToString(), ": cannot remove the stale socket: ", ErrnoText(errno)));
  }
  return absl::OkStatus();
}

std::string WhyNotBound(const Endpoint& endpoint) {
  return endpoint.is_unix() ? WhyNotBoundUnix(endpoint.unix_path) : WhyNotBoundTcp(endpoint);
}

}  // namespace atelier
