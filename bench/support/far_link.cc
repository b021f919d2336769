#include "bench/support/far_link.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "libs/base/status_macros.h"
#include "tests/e2e/faults/private_network.h"

namespace atelier {
namespace {

// Carries packets until it is killed; tells the parent the number of the namespace's descriptor, or
// why there is none.
[[noreturn]] void Carry(int pipe, absl::Duration delay) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::prctl(PR_SET_TIMERSLACK, 1000);  // nanoseconds; the delay is to be what it says
  const auto host = faults::FarHost::Create(1);
  std::string answer = host.ok() ? "" : std::string(host.status().message());
  if (host.ok()) {
    faults::LinkRules rules;
    rules.delay = delay;
    (*host)->link().SetRules(faults::Link::kToFar, rules);
    answer = absl::StrCat("/proc/", ::getpid(), "/fd/", (*host)->network_namespace());
  }
  if (::write(pipe, answer.data(), answer.size()) < 0) ::_exit(1);
  ::close(pipe);
  while (host.ok()) ::pause();
  ::_exit(1);
}

}  // namespace

absl::StatusOr<std::unique_ptr<FarLink>> FarLink::Start(absl::Duration delay) {
  ATELIER_RETURN_IF_ERROR(faults::IsolateNetwork());
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) return absl::UnavailableError("pipe2 failed");
  std::fflush(stdout);
  const pid_t carrier = ::fork();
  if (carrier == 0) Carry(pipe[1], delay);
  ::close(pipe[1]);
  std::string answer;
  char buffer[512];
  for (ssize_t n = 0; (n = ::read(pipe[0], buffer, sizeof(buffer))) > 0;) {
    answer.append(buffer, static_cast<size_t>(n));
  }
  ::close(pipe[0]);
  const int network = ::open(answer.c_str(), O_RDONLY | O_CLOEXEC);
  if (network >= 0) return std::unique_ptr<FarLink>(new FarLink(carrier, network));
  ::kill(carrier, SIGKILL);
  ::waitpid(carrier, nullptr, 0);
  return absl::UnavailableError(absl::StrCat("no second host: ", answer));
}

FarLink::~FarLink() {
  ::close(namespace_);
  ::kill(carrier_, SIGKILL);
  ::waitpid(carrier_, nullptr, 0);
}

std::string FarLink::address() { return faults::FarHost::address(); }

}  // namespace atelier
