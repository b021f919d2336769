#include "libs/transport/security.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/certificates.h"
#include "libs/testing/fake_worker.h"
#include "libs/testing/read_file.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/temp_dir.h"
#include "libs/transport/worker_connection.h"
#include "libs/transport/worker_server.h"

namespace atelier {
namespace {

using ::testing::AllOf;
using testing::CertificateAuthority;
using testing::CertificateFiles;
using testing::FakeWorker;
using ::testing::HasSubstr;
using testing::IsOk;
using ::testing::Not;
using testing::ReadFile;
using testing::StatusIs;

void Write(const std::string& path, const std::string& text) {
  std::ofstream(path + ".new") << text;
  std::filesystem::rename(path + ".new", path);
}

// What one client hears of its worker.
class Link {
 public:
  Link(const std::string& address, const ClientSecurity& security)
      : connection_(WorkerConnection::Create(
            address, clock_, logger_,
            [this](const absl::StatusOr<WorkerDescription>& news) {
              absl::MutexLock lock(&mutex_);
              last_ = news.status();
              usable_ |= news.ok();
              ++heard_;
            },
            security)) {}

  // The first that it hears.
  absl::Status First() {
    absl::MutexLock lock(&mutex_);
    const auto heard = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return heard_ > 0; };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&heard), absl::Minutes(1))) {
      return absl::DeadlineExceededError("nothing heard");
    }
    return last_;
  }
  // Whether it gets through in the end: it tries on by itself.
  bool AwaitUsable() {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&usable_), absl::Minutes(1));
  }
  // Whether the connection that it has still carries calls.
  bool Lives() {
    absl::Notification heard;
    connection_->AskForSign([&heard] { heard.Notify(); });
    return heard.WaitForNotificationWithTimeout(absl::Minutes(1));
  }

 private:
  SystemClock clock_;
  Logger logger_{Severity::kError, [](absl::string_view) {}};
  absl::Mutex mutex_;
  absl::Status last_ ABSL_GUARDED_BY(mutex_);
  bool usable_ ABSL_GUARDED_BY(mutex_) = false;
  int heard_ ABSL_GUARDED_BY(mutex_) = 0;
  const std::unique_ptr<WorkerConnection> connection_;  // goes before what its callback uses
};

class SecurityTest : public ::testing::Test {
 protected:
  void Start(const ServerSecurity& security) {
    WorkerServerOptions options;
    options.listen = {"127.0.0.1:0"};
    options.hidden_size = 16;
    options.num_experts = 8;
    options.security = security;
    auto server = WorkerServer::Start(options, worker_, clock_, logger_);
    ATELIER_ASSERT_OK(server);
    server_ = *std::move(server);
    server_->SetServing(true);
  }
  std::string address() const { return server_->Addresses()[0]; }
  std::string File(const std::string& name) const { return directory_.File(name); }
  ServerSecurity Tls() const { return {files_.certificate, files_.private_key, "", ""}; }
  ClientSecurity Trusting(const CertificateAuthority& ca) const {
    return {ca.path(), "", "", "", ""};
  }
  // What a client of such files hears first.
  absl::Status Try(const ClientSecurity& security) { return Link(address(), security).First(); }

  testing::TempDir directory_;
  CertificateAuthority ca_{File("ca.crt")};
  CertificateAuthority stranger_{File("stranger.crt")};
  CertificateFiles files_ = ca_.Issue(File("worker"), "IP:127.0.0.1");
  // What the server logged since the last look.
  std::string Said() {
    absl::MutexLock lock(&said_mutex_);
    return std::exchange(said_, "");
  }

  SystemClock clock_;
  absl::Mutex said_mutex_;
  std::string said_ ABSL_GUARDED_BY(said_mutex_);
  Logger logger_{Severity::kWarning, [this](absl::string_view line) {
                   absl::MutexLock lock(&said_mutex_);
                   absl::StrAppend(&said_, line);
                 }};
  FakeWorker worker_{testing::FakeDescription()};
  std::unique_ptr<WorkerServer> server_;
};

TEST_F(SecurityTest, AWorkerProvesWhoItIs) {
  Start(Tls());
  EXPECT_THAT(Try(Trusting(ca_)), IsOk());
  EXPECT_THAT(Try(Trusting(stranger_)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("certificate verify failed")));
}

TEST_F(SecurityTest, ACertificateIsOfOneName) {
  files_ = ca_.Issue(File("worker"), "DNS:worker-0");
  Start(Tls());
  ClientSecurity client = Trusting(ca_);
  EXPECT_THAT(Try(client),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("not in peer certificate")));
  client.server_name = "worker-1";
  EXPECT_THAT(Try(client),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("not in peer certificate")));
  client.server_name = "worker-0";
  EXPECT_THAT(Try(client), IsOk());
}

TEST_F(SecurityTest, AClientProvesWhoItIsWhereTheWorkerAsks) {
  ServerSecurity server = Tls();
  server.client_ca = ca_.path();
  Start(server);
  ClientSecurity client = Trusting(ca_);
  EXPECT_THAT(Try(client), StatusIs(absl::StatusCode::kUnavailable, HasSubstr(address())));
  const auto show = [&](const CertificateFiles& files) {
    client.certificate = files.certificate;
    client.private_key = files.private_key;
    return Try(client);
  };
  EXPECT_THAT(show(stranger_.Issue(File("other"), "DNS:frontend")),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(address())));
  EXPECT_THAT(show(ca_.Issue(File("client"), "DNS:frontend")), IsOk());
}

TEST_F(SecurityTest, CallsBringATokenOfTheWorkers) {
  ServerSecurity server = Tls();
  server.token_file = File("tokens");
  Write(server.token_file, "# of the frontends\nfirst\n\nsecond\n");
  Start(server);
  ClientSecurity client = Trusting(ca_);
  EXPECT_THAT(Try(client), StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("no bearer")));
  client.token_file = File("token");
  for (const std::string wrong : {"third", "firs", "firstt"}) {
    Write(client.token_file, wrong);
    EXPECT_THAT(Try(client), StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("not one")));
  }
  for (const std::string broken : {"#", "first second"}) {
    Write(client.token_file, broken);
    EXPECT_THAT(Try(client), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no token")));
  }
  for (const std::string right : {"first", "second\n"}) {
    Write(client.token_file, right);
    EXPECT_THAT(Try(client), IsOk()) << right;
  }
  Write(server.token_file, "fourth\n");
  EXPECT_THAT(Try(client), StatusIs(absl::StatusCode::kUnauthenticated,
                                    AllOf(HasSubstr("not one"), HasSubstr(address()))));
  Write(client.token_file, "fourth");
  for (const std::string broken : {"", "two words\n", "absent"}) {
    if (broken == "absent") {
      std::filesystem::remove(server.token_file);
    } else {
      Write(server.token_file, broken);
    }
    EXPECT_THAT(Try(client), IsOk()) << broken;
    EXPECT_THAT(Said(), HasSubstr("token_file_rejected"));
  }
}

TEST_F(SecurityTest, PlaintextAndTlsDoNotMeet) {
  Start(Tls());
  EXPECT_THAT(Try({}), StatusIs(absl::StatusCode::kUnavailable, HasSubstr(address())));
  EXPECT_THAT(Try(Trusting(ca_)), IsOk());
  Start({});
  EXPECT_THAT(Try(Trusting(ca_)), StatusIs(absl::StatusCode::kUnavailable, HasSubstr(address())));
  EXPECT_THAT(Try({}), IsOk());
}

int NumThreads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<int>(std::distance(begin(tasks), end(tasks)));
}

// Nor a thread, whatever gRPC keeps of credentials.
TEST_F(SecurityTest, AttemptsLeaveNothingBehind) {
  Start(Tls());
  const auto attempts = [&](int count) {
    for (int i = 0; i < count; ++i) EXPECT_THAT(Try(Trusting(ca_)), IsOk());
    return NumThreads();
  };
  const int before = attempts(10);
  EXPECT_LE(attempts(40), before + 10);
}

// Of everything: the worker's certificate and key, and the CA that clients of it trust.
TEST_F(SecurityTest, CertificatesRotateUnderConnections) {
  Start(Tls());
  Link old(address(), Trusting(ca_));
  ASSERT_TRUE(old.AwaitUsable());
  Link next(address(), Trusting(stranger_));
  EXPECT_THAT(next.First(), Not(IsOk()));
  files_ = stranger_.Issue(File("worker"), "IP:127.0.0.1");
  EXPECT_TRUE(next.AwaitUsable());
  EXPECT_TRUE(old.Lives());
  EXPECT_THAT(Try(Trusting(ca_)), StatusIs(absl::StatusCode::kUnavailable, HasSubstr(address())));
}

// A copy that failed, a pair whose halves come one after the other, a certificate of the past.
TEST_F(SecurityTest, FilesThatBreakLaterChangeNothing) {
  Start(Tls());
  ASSERT_THAT(Try(Trusting(ca_)), IsOk());
  const CertificateFiles other = ca_.Issue(File("other"), "IP:127.0.0.1");
  const CertificateFiles past =
      ca_.Issue(File("past"), "IP:127.0.0.1", -absl::Hours(48), -absl::Hours(24));
  const auto becomes = [&](const std::string& file, const std::string& text) {
    Write(file, text);
    EXPECT_THAT(Try(Trusting(ca_)), IsOk()) << file << text;
    EXPECT_THAT(Said(), HasSubstr("tls_files_rejected")) << file << text;
    EXPECT_THAT(Try(Trusting(ca_)), IsOk());
    EXPECT_EQ(Said(), "") << "not once";
  };
  becomes(files_.certificate, "");
  becomes(files_.certificate, ReadFile(other.certificate));
  Write(files_.private_key, ReadFile(other.private_key));
  EXPECT_THAT(Try(Trusting(ca_)), IsOk());
  becomes(files_.private_key, "");
  Write(files_.private_key, ReadFile(past.private_key));
  becomes(files_.certificate, ReadFile(past.certificate));
  std::filesystem::remove(files_.private_key);
  EXPECT_THAT(Try(Trusting(ca_)), IsOk());
}

TEST_F(SecurityTest, ServersOfBrokenFilesDoNotStart) {
  const CertificateFiles other = ca_.Issue(File("other"), "DNS:other");
  const CertificateFiles past =
      ca_.Issue(File("past"), "DNS:past", -absl::Hours(48), -absl::Hours(24));
  const CertificateFiles future =
      ca_.Issue(File("future"), "DNS:future", absl::Hours(24), absl::Hours(48));
  Write(File("garbage"), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
  Write(File("empty"), "");
  Write(File("large"), std::string((1 << 20) + 1, 'x'));
  Write(File("words"), "two words\n");
  struct Case {
    ServerSecurity security;
    std::string file, part;
    absl::StatusCode code = absl::StatusCode::kInvalidArgument;
  };
  const std::string key = files_.private_key, good = files_.certificate;
  for (const Case& broken : {
           Case{{File("absent"), key, "", ""},
                "absent",
                "No such file",
                absl::StatusCode::kNotFound},
           Case{{File("garbage"), key, "", ""}, "garbage", "no certificate in PEM"},
           Case{{File("empty"), key, "", ""}, "empty", "no certificate in PEM"},
           Case{{File("large"), key, "", ""}, "large", "larger than 1 MiB"},
           Case{{directory_.path(), key, "", ""},
                directory_.path(),
                "Is a directory",
                absl::StatusCode::kFailedPrecondition},
           Case{{good, good, "", ""}, good, "no private key"},
           Case{{good, other.private_key, "", ""}, other.private_key, "not the key of"},
           Case{{past.certificate, past.private_key, "", ""}, "past.crt", "expired on"},
           Case{{future.certificate, future.private_key, "", ""}, "future.crt", "valid from"},
           Case{{good, key, File("empty"), ""}, "empty", "no certificate in PEM"},
           Case{{good, key, "", File("empty")}, "empty", "holds no token"},
           Case{{good, key, "", File("words")}, "words line 1", "without spaces"},
       }) {
    WorkerServerOptions options;
    options.listen = {"127.0.0.1:0"};
    options.hidden_size = 16;
    options.num_experts = 8;
    options.security = broken.security;
    EXPECT_THAT(WorkerServer::Start(options, worker_, clock_, logger_).status(),
                StatusIs(broken.code, AllOf(HasSubstr(broken.file), HasSubstr(broken.part))));
  }
}

TEST_F(SecurityTest, ClientsOfBrokenFilesAreToldSo) {
  Write(File("two"), "one\ntwo\n");
  ClientSecurity client = Trusting(ca_);
  client.token_file = File("two");
  EXPECT_THAT(CheckFiles(client),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("two: holds 2 tokens")));
  client = Trusting(ca_);
  client.certificate = files_.certificate;
  client.private_key = File("absent");
  EXPECT_THAT(CheckFiles(client), StatusIs(absl::StatusCode::kNotFound, HasSubstr("absent")));
  client = {File("absent.crt"), "", "", "", ""};
  EXPECT_THAT(CheckFiles(client), StatusIs(absl::StatusCode::kNotFound, HasSubstr("absent.crt")));
}

}  // namespace
}  // namespace atelier
