#include "tests/e2e/faults/service_process.h"

#include <signal.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace atelier::faults {
namespace {

constexpr size_t kLogTail = 2000;

}  // namespace

ServiceProcess::ServiceProcess(ServiceSpec spec)
    : spec_(std::move(spec)), ready_file_(spec_.run_dir + "/" + spec_.name + ".ready") {}

void ServiceProcess::Start() {
  std::filesystem::remove(ready_file_);
  facts_.clear();
  std::vector<std::string> command = spec_.command;
  command.push_back("--ready-file=" + ready_file_);
  process_ = std::make_unique<testing::ChildProcess>(
      command, spec_.run_dir + "/" + spec_.name + ".log",
      testing::ChildSetup{spec_.network_namespace, /*dies_with_parent=*/true});
}

void ServiceProcess::Signal(int number) {
  if (process_->Running()) process_->Signal(number);
}

void ServiceProcess::Kill() {
  Signal(SIGKILL);
  process_->Wait();
}

int ServiceProcess::Wait() { return process_->Wait(); }

bool ServiceProcess::Running() { return process_ != nullptr && process_->Running(); }

bool ServiceProcess::Ready() {
  if (!facts_.empty()) return Running();
  std::ifstream file(ready_file_);
  for (std::string line; std::getline(file, line);) {
    const std::pair<std::string, std::string> fact = absl::StrSplit(line, absl::MaxSplits('=', 1));
    facts_.insert(fact);
  }
  return !facts_.empty() && Running();
}

std::string ServiceProcess::Fact(const std::string& key) {
  return Ready() ? facts_[key] : std::string();
}

absl::Status ServiceProcess::CheckAlive() {
  if (Running()) return absl::OkStatus();
  const std::string log = process_->Log();
  return absl::InternalError(absl::StrCat(
      spec_.name, " has ended by itself with status ", process_->Wait(), "; its log ends with:\n",
      log.size() > kLogTail ? log.substr(log.size() - kLogTail) : log));
}

}  // namespace atelier::faults
