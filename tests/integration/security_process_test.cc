#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/certificates.h"
#include "libs/testing/child_process.h"
#include "libs/testing/synthetic_checkpoint.h"
#include "libs/testing/temp_dir.h"

// The real worker and the real frontend, which prove to each other who they are.

namespace atelier {
namespace {

using ::atelier::testing::CertificateAuthority;
using ::atelier::testing::CertificateFiles;
using ::atelier::testing::ChildProcess;
using ::atelier::testing::WaitUntil;
using ::testing::AllOf;
using ::testing::HasSubstr;

class SecurityProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::WriteSyntheticCheckpoint(model_.path(),
                                      {.config_json = testing::TinyGlm4MoeConfig(), .seed = 11});
    std::ofstream(File("tokens")) << "of-this-test\n";
    worker_ = Start("worker", {ATELIER_WORKER_BINARY, "--listen=127.0.0.1:0", "--no-pin",
                               "--tls-cert=" + own_.certificate, "--tls-key=" + own_.private_key,
                               "--tls-client-ca=" + ca_.path(), "--token-file=" + File("tokens")});
    ASSERT_TRUE(AwaitReady(*worker_, "worker")) << worker_->Log();
  }

  std::string File(const std::string& name) const { return dir_.File(name); }
  std::unique_ptr<ChildProcess> Start(const std::string& name, std::vector<std::string> command) {
    command.insert(command.end(), {"--model-path=" + model_.path(), "--metrics-address=127.0.0.1:0",
                                   "--ready-file=" + File(name + ".ready")});
    return std::make_unique<ChildProcess>(command, File(name + ".log"));
  }
  std::unique_ptr<ChildProcess> StartFrontend(const std::vector<std::string>& flags) {
    std::vector<std::string> command = {ATELIER_FRONTEND_BINARY, "--workers=" + Listen(),
                                        "--port=0"};
    command.insert(command.end(), flags.begin(), flags.end());
    return Start("frontend", std::move(command));
  }
  bool AwaitReady(ChildProcess& process, const std::string& name) const {
    const std::string ready = File(name + ".ready");
    return WaitUntil([&] { return !process.Running() || std::filesystem::exists(ready); }) &&
           process.Running();
  }
  // Where the worker listens.
  std::string Listen() const {
    std::ifstream file(File("worker.ready"));
    std::string line;
    std::getline(file, line);
    return line.substr(line.find('=') + 1);
  }

  const testing::TempDir model_, dir_;
  const CertificateAuthority ca_{File("ca.crt")};
  const CertificateFiles own_ = ca_.Issue(File("worker"), "DNS:worker-0");
  const CertificateFiles client_ = ca_.Issue(File("client"), "DNS:frontend");
  std::unique_ptr<ChildProcess> worker_;
};

TEST_F(SecurityProcessTest, AFrontendWithEverythingServes) {
  const auto frontend =
      StartFrontend({"--worker-tls-ca=" + ca_.path(), "--worker-tls-cert=" + client_.certificate,
                     "--worker-tls-key=" + client_.private_key, "--worker-tls-server-name=worker-0",
                     "--worker-token-file=" + File("tokens")});
  EXPECT_TRUE(AwaitReady(*frontend, "frontend")) << frontend->Log();
}

TEST_F(SecurityProcessTest, AFrontendThatLacksSomethingSaysWhatTheWorkerSaid) {
  const std::vector<std::string> tls = {"--connect-timeout=2s", "--worker-tls-ca=" + ca_.path(),
                                        "--worker-tls-cert=" + client_.certificate,
                                        "--worker-tls-key=" + client_.private_key,
                                        "--worker-tls-server-name=worker-0"};
  const auto frontend = StartFrontend(tls);
  EXPECT_EQ(frontend->Wait(), 1);
  EXPECT_THAT(frontend->Log(), AllOf(HasSubstr("frontend_failed"), HasSubstr("no bearer token")));
}

TEST_F(SecurityProcessTest, ABrokenFileEndsTheStart) {
  std::ofstream(File("no.crt")) << "no certificate";
  const auto frontend = StartFrontend({"--worker-tls-ca=" + File("no.crt")});
  EXPECT_NE(frontend->Wait(), 0);
  EXPECT_THAT(frontend->Log(), HasSubstr("no.crt: holds no certificate in PEM form"));
  const auto worker =
      Start("second", {ATELIER_WORKER_BINARY, "--listen=127.0.0.1:0",
                       "--tls-cert=" + own_.certificate, "--tls-key=" + client_.private_key});
  EXPECT_NE(worker->Wait(), 0);
  EXPECT_THAT(worker->Log(), HasSubstr("client.key: is not the key of"));
}

}  // namespace
}  // namespace atelier
