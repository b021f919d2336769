#include "libs/testing/child_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include "libs/base/check.h"
#include "libs/testing/read_file.h"

namespace atelier::testing {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(5);

// Between fork and exec of a process with threads only system calls are safe: everything is
// prepared before.
[[noreturn]] void Become(char* const* argv, const char* log_path, const ChildSetup& setup) {
  if (setup.dies_with_parent) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (setup.network_namespace >= 0 && ::setns(setup.network_namespace, CLONE_NEWNET) != 0) {
    ::_exit(126);
  }
  const int log = ::open(log_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  ::dup2(log, STDOUT_FILENO);
  ::dup2(log, STDERR_FILENO);
  ::execv(argv[0], argv);
  ::_exit(127);
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& arguments, std::string log_path,
                           ChildSetup setup)
    : log_path_(std::move(log_path)) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_ = ::fork();
  ATELIER_CHECK(pid_ >= 0);
  if (pid_ == 0) Become(argv.data(), log_path_.c_str(), setup);
}

ChildProcess::~ChildProcess() {
  if (!Running()) return;
  Signal(SIGKILL);
  Wait();
}

void ChildProcess::Signal(int number) const { ATELIER_CHECK(::kill(pid_, number) == 0); }

void ChildProcess::Reap(int options) {
  int status = 0;
  if (status_ >= 0 || ::waitpid(pid_, &status, options) != pid_) return;
  status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

int ChildProcess::Wait() {
  Reap(0);
  return status_;
}

bool ChildProcess::Running() {
  Reap(WNOHANG);
  return status_ < 0;
}

std::string ChildProcess::Log() const { return ReadFile(log_path_); }

bool WaitUntil(const std::function<bool()>& condition, double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(kPoll);
  }
  return true;
}

std::string ExchangeWithPort(int port, const std::string& text) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
      ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size())) {
    char buffer[4096];
    for (ssize_t n = ::read(fd, buffer, sizeof(buffer)); n > 0;
         n = ::read(fd, buffer, sizeof(buffer))) {
      answer.append(buffer, static_cast<size_t>(n));
    }
  }
  ::close(fd);
  return answer;
}

std::string HttpGet(int port, const std::string& path) {
  return ExchangeWithPort(port, "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
}

}  // namespace atelier::testing
