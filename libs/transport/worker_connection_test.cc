#include "libs/transport/worker_connection.h"

#include <fstream>
#include <random>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "libs/testing/certificates.h"
#include "libs/testing/fake_worker.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/temp_dir.h"
#include "libs/transport/shm_worker_server.h"
#include "libs/transport/worker_server.h"

namespace atelier {
namespace {

using ::atelier::testing::FakeDescription;
using ::atelier::testing::FakeServerOptions;
using ::atelier::testing::FakeWorker;
using ::atelier::testing::IsOk;
using ::atelier::testing::StatusIs;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Minutes(1);

// A batch with memory of its own, and what it is asked for.
struct Batch {
  Batch(int num_tokens, int hidden_size, int top_k, int num_experts)
      : tokens(num_tokens), hidden(hidden_size), k(top_k) {
    std::mt19937 random(7);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    rows.resize(static_cast<size_t>(tokens) * static_cast<size_t>(hidden));
    for (BFloat16& value : rows) value = ToBFloat16(uniform(random));
    for (int i = 0; i < tokens * k; ++i) {
      ids.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(num_experts)));
      weights.push_back(uniform(random));
    }
  }

  ForwardEncoding Encoding(int layer) const {
    ForwardEncoding encoding;
    encoding.layer = layer;
    encoding.batch = {tokens, hidden, rows.data()};
    encoding.routing = {tokens, k, ids.data(), weights.data()};
    return encoding;
  }
  // What `worker` answers to it, without a wire between, given rows in `form`.
  ForwardReply Expected(int layer, const WorkerDescription& worker,
                        ActivationForm form = ActivationForm::kBf16) const {
    ForwardRequest request;
    request.layer = layer;
    request.batch = {tokens, hidden, rows.data()};
    request.routing = {tokens, k, ids.data(), weights.data()};
    if (form == ActivationForm::kBf16) return FakeWorker::Compute(worker, request);
    const size_t num_scales = ScalesPerRow(form, hidden);
    std::vector<int8_t> codes(rows.size());
    std::vector<float> scales(static_cast<size_t>(tokens) * num_scales);
    for (size_t t = 0; t < static_cast<size_t>(tokens); ++t) {
      const size_t at = t * static_cast<size_t>(hidden);
      QuantizeRow(form, rows.data() + at, hidden, codes.data() + at,
                  scales.data() + t * num_scales);
    }
    request.batch.num_quantized = tokens;
    request.batch.quantized_form = form;
    request.batch.codes = codes.data();
    request.batch.scales = scales.data();
    return FakeWorker::Compute(worker, request);
  }

  int tokens, hidden, k;
  std::vector<BFloat16> rows;
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

// A call and its answer.
class Call {
 public:
  Call(WorkerConnection& connection, const ForwardEncoding& encoding,
       absl::Duration timeout = kPatience)
      : handle_(connection.Forward(EncodeForward(encoding), SystemClock().Now() + timeout,
                                   [this](ForwardReply reply) {
                                     reply_ = std::move(reply);
                                     done_.Notify();
                                   })) {}

  const ForwardReply& Await() {
    if (!done_.WaitForNotificationWithTimeout(kPatience)) {
      reply_.status = absl::InternalError("the test lost its patience");
    }
    return reply_;
  }
  bool done() const { return done_.HasBeenNotified(); }
  void Abandon() { handle_ = nullptr; }

 private:
  ForwardReply reply_;
  absl::Notification done_;
  std::unique_ptr<ForwardInFlight> handle_;
};

// What a connection said about its worker.
class States {
 public:
  WorkerConnection::StateCallback Callback() {
    return [this](const absl::StatusOr<WorkerDescription>& state) {
      absl::MutexLock lock(&mutex_);
      usable_ = state.ok();
      last_ = state;
      times_usable_ += state.ok() ? 1 : 0;
      times_lost_ += state.ok() || times_usable_ == 0 ? 0 : 1;
    };
  }
  bool AwaitUsable(bool usable) {
    absl::MutexLock lock(&mutex_);
    const auto is = [this, usable]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return usable_ == usable; };
    return mutex_.AwaitWithTimeout(absl::Condition(&is), kPatience);
  }
  bool AwaitTimesUsable(int times) {
    absl::MutexLock lock(&mutex_);
    const auto is = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return times_usable_ >= times; };
    return mutex_.AwaitWithTimeout(absl::Condition(&is), kPatience);
  }
  absl::StatusOr<WorkerDescription> last() {
    absl::MutexLock lock(&mutex_);
    return last_;
  }
  int times_lost() {
    absl::MutexLock lock(&mutex_);
    return times_lost_;
  }

 private:
  absl::Mutex mutex_;
  bool usable_ = false;
  int times_usable_ = 0;
  int times_lost_ = 0;
  absl::StatusOr<WorkerDescription> last_ = absl::UnknownError("nothing said yet");
};

bool SameSums(const ForwardReply& a, const ForwardReply& b) {
  if (a.sums.size() != b.sums.size()) return false;
  for (size_t i = 0; i < a.sums.size(); ++i) {
    if (a.sums[i].shard != b.sums[i].shard || a.sums[i].data != b.sums[i].data) return false;
  }
  return true;
}

enum class Wire { kTcp, kUnix, kShm, kTls };

class ConnectionTest : public ::testing::TestWithParam<Wire> {
 protected:
  std::string ListenAddress() const {
    if (GetParam() == Wire::kTcp || GetParam() == Wire::kTls) return "127.0.0.1:0";
    return (GetParam() == Wire::kUnix ? "unix:" : "shm:") + directory_.File("worker.sock");
  }
  void StartShmServer(const std::string& address) {
    ShmServerOptions options;
    const WorkerDescription description = worker_.Describe();
    options.path = address.substr(4);
    options.num_slots = 64;
    options.bytes_per_client = int64_t{16} << 20;
    options.hidden_size = description.hidden_size;
    options.num_experts = description.num_experts;
    options.top_k = description.top_k;
    absl::StatusOr<std::unique_ptr<ShmWorkerServer>> server =
        ShmWorkerServer::Start(options, worker_, clock_, logger_);
    ATELIER_ASSERT_OK(server);
    shm_server_ = *std::move(server);
    address_ = address;
  }
  void StopServer() {
    if (server_ != nullptr) server_->Shutdown(absl::ZeroDuration());
    if (shm_server_ != nullptr) shm_server_->Shutdown(absl::ZeroDuration());
  }
  void StartServer(const std::string& address) {
    server_ = nullptr;
    shm_server_ = nullptr;
    if (GetParam() == Wire::kShm) return StartShmServer(address);
    WorkerServerOptions options = FakeServerOptions(worker_.Describe(), address);
    options.security = server_security_;
    absl::StatusOr<std::unique_ptr<WorkerServer>> server =
        WorkerServer::Start(options, worker_, clock_, logger_);
    ATELIER_ASSERT_OK(server);
    server_ = *std::move(server);
    server_->SetServing(true);
    address_ = server_->Addresses()[0];
  }
  void Connect() {
    connection_ =
        WorkerConnection::Create(address_, clock_, logger_, states_.Callback(), client_security_);
    ASSERT_TRUE(states_.AwaitTimesUsable(++times_connected_)) << states_.last().status();
  }
  // Both sides show certificates, and calls bring a token.
  void TurnOnTls() {
    const testing::CertificateAuthority ca(directory_.File("ca.crt"));
    const auto worker = ca.Issue(directory_.File("worker"), "IP:127.0.0.1");
    const auto client = ca.Issue(directory_.File("client"), "DNS:frontend");
    std::ofstream(directory_.File("tokens")) << "a-token\n";
    server_security_ = {worker.certificate, worker.private_key, ca.path(),
                        directory_.File("tokens")};
    client_security_ = {ca.path(), client.certificate, client.private_key, "",
                        directory_.File("tokens")};
  }
  void SetUp() override {
    if (GetParam() == Wire::kTls) TurnOnTls();
    StartServer(ListenAddress());
    if (!address_.empty()) Connect();
  }
  void TearDown() override {
    connection_ = nullptr;
    worker_.Release();
  }

  testing::TempDir directory_;
  SystemClock clock_;
  Logger logger_{Severity::kWarning};
  States states_;
  FakeWorker worker_{FakeDescription()};
  int times_connected_ = 0;
  ServerSecurity server_security_;
  ClientSecurity client_security_;
  std::string address_;
  std::unique_ptr<WorkerServer> server_;
  std::unique_ptr<ShmWorkerServer> shm_server_;
  std::unique_ptr<WorkerConnection> connection_;
};
INSTANTIATE_TEST_SUITE_P(Wires, ConnectionTest,
                         ::testing::Values(Wire::kTcp, Wire::kUnix, Wire::kShm, Wire::kTls),
                         [](const auto& info) {
                           return info.param == Wire::kTcp    ? "Tcp"
                                  : info.param == Wire::kUnix ? "Unix"
                                  : info.param == Wire::kTls  ? "Tls"
                                                              : "Shm";
                         });

TEST_P(ConnectionTest, AnswersWithTheWorkersSums) {
  for (const int tokens : {0, 1, 3, 100}) {
    const Batch batch(tokens, 16, 2, 8);
    Call call(*connection_, batch.Encoding(2));
    ATELIER_ASSERT_OK(call.Await().status);
    EXPECT_TRUE(SameSums(call.Await(), batch.Expected(2, worker_.Describe()))) << tokens;
  }
}

TEST_P(ConnectionTest, SendsOnlyTheRowsAskedFor) {
  const Batch batch(4, 16, 2, 8);
  const std::vector<int> rows = {3, 1};
  ForwardEncoding encoding = batch.Encoding(0);
  encoding.rows = &rows;
  encoding.output_dtype = DType::kBF16;
  Call call(*connection_, encoding);
  ATELIER_ASSERT_OK(call.Await().status);
  EXPECT_EQ(call.Await().sums[0].data.size(), 2u * 16u * 2u);
  EXPECT_EQ(worker_.tokens(), 2);
}

// On one host they stay bf16 whatever the worker takes: there a copy costs less than the codes.
TEST_P(ConnectionTest, RowsGoQuantisedOverTcpToAWorkerThatTakesThemSo) {
  for (const ActivationForm form : {ActivationForm::kInt8Row, ActivationForm::kInt8Blocks}) {
    connection_ = nullptr;
    WorkerDescription description = FakeDescription();
    description.hidden_size = 300;
    description.quantized_rows = form;
    worker_.SetDescription(description);
    StartServer(ListenAddress());
    Connect();
    const Batch batch(9, 300, 2, 8);
    Call call(*connection_, batch.Encoding(1));
    const ForwardReply& reply = call.Await();
    ATELIER_ASSERT_OK(reply.status);
    const bool over_tcp = GetParam() == Wire::kTcp || GetParam() == Wire::kTls;
    const ActivationForm sent = over_tcp ? form : ActivationForm::kBf16;
    EXPECT_EQ(worker_.last_form(), sent);
    const ForwardReply want = batch.Expected(1, description, sent);
    ASSERT_EQ(reply.sums.size(), 1u);
    EXPECT_EQ(reply.sums[0].data, want.sums[0].data);
  }
}

TEST_P(ConnectionTest, ManyInFlightAreMatchedWhateverTheOrderOfAnswers) {
  worker_.Hold();
  std::vector<Batch> batches;
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 50; ++i) {
    batches.emplace_back(1 + i % 5, 16, 2, 8);
    calls.push_back(std::make_unique<Call>(*connection_, batches.back().Encoding(i % 4)));
  }
  ASSERT_TRUE(worker_.AwaitCalls(50));
  worker_.Release();
  for (size_t i = 0; i < calls.size(); ++i) {
    ATELIER_ASSERT_OK(calls[i]->Await().status);
    EXPECT_TRUE(SameSums(calls[i]->Await(),
                         batches[i].Expected(static_cast<int>(i % 4), worker_.Describe())));
  }
}

TEST_P(ConnectionTest, ABadRequestFailsAlone) {
  const Batch good(2, 16, 2, 8);
  Batch bad(2, 16, 2, 8);
  bad.ids[3] = 8;
  const Batch narrow(2, 8, 2, 8);
  worker_.Hold();
  Call first(*connection_, good.Encoding(1));
  Call second(*connection_, bad.Encoding(1));
  Call third(*connection_, narrow.Encoding(1));
  EXPECT_THAT(second.Await().status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is 8, but num_experts=8")));
  EXPECT_THAT(third.Await().status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("hidden has 32 bytes")));
  EXPECT_THAT(third.Await().status.message(), HasSubstr(address_));
  worker_.Release();
  EXPECT_THAT(first.Await().status, IsOk());
}

TEST_P(ConnectionTest, AWorkerGivesSignsOfLifeWhileItsCallsWait) {
  worker_.Hold();
  const Batch batch(1, 16, 2, 8);
  Call call(*connection_, batch.Encoding(0));
  ASSERT_TRUE(worker_.AwaitCalls(1));
  for (int i = 0; i < 3; ++i) {
    // Who asks while it is being asked shares the answer.
    absl::Notification first, second;
    connection_->AskForSign([&] { first.Notify(); });
    connection_->AskForSign([&] { second.Notify(); });
    ASSERT_TRUE(first.WaitForNotificationWithTimeout(kPatience));
    ASSERT_TRUE(second.WaitForNotificationWithTimeout(kPatience));
  }
  EXPECT_FALSE(call.done());
}

TEST_P(ConnectionTest, AResetFailsWhatIsInFlightAndConnectsAnew) {
  worker_.Hold();
  const Batch batch(1, 16, 2, 8);
  Call call(*connection_, batch.Encoding(0));
  ASSERT_TRUE(worker_.AwaitCalls(1));
  connection_->Reset(absl::UnavailableError("the test wants it so"));
  EXPECT_FALSE(call.Await().status.ok());
  ASSERT_TRUE(states_.AwaitTimesUsable(++times_connected_));
  worker_.Release();
  Call next(*connection_, batch.Encoding(0));
  ATELIER_EXPECT_OK(next.Await().status);
}

TEST_P(ConnectionTest, AbandoningACallTellsTheWorkerAndSilencesTheCallback) {
  const Batch batch(1, 16, 2, 8);
  worker_.Hold();
  Call abandoned(*connection_, batch.Encoding(0));
  Call kept(*connection_, batch.Encoding(1));
  ASSERT_TRUE(worker_.AwaitCalls(2));
  abandoned.Abandon();
  EXPECT_TRUE(worker_.AwaitCancelled());
  worker_.Release();
  ATELIER_EXPECT_OK(kept.Await().status);
  EXPECT_FALSE(abandoned.done());
}

TEST_P(ConnectionTest, AFrozenWorkerCannotHoldACallerBeyondItsDeadline) {
  const Batch batch(1, 16, 2, 8);
  worker_.Hold();
  Call call(*connection_, batch.Encoding(3), absl::Milliseconds(30));
  EXPECT_THAT(call.Await().status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                            AllOf(HasSubstr(address_), HasSubstr("layer 3"))));
  EXPECT_TRUE(worker_.AwaitCancelled());
}

TEST_P(ConnectionTest, ClosingTheConnectionCancelsWhatTheWorkerHolds) {
  const Batch batch(1, 16, 2, 8);
  worker_.Hold();
  Call call(*connection_, batch.Encoding(0));
  ASSERT_TRUE(worker_.AwaitCalls(1));
  connection_ = nullptr;
  EXPECT_THAT(call.Await().status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr(address_)));
  EXPECT_TRUE(worker_.AwaitCancelled());
}

TEST_P(ConnectionTest, ALostWorkerFailsItsCallsAndIsFoundAgain) {
  const Batch batch(1, 16, 2, 8);
  worker_.Hold();
  Call call(*connection_, batch.Encoding(0));
  ASSERT_TRUE(worker_.AwaitCalls(1));
  StopServer();
  EXPECT_THAT(call.Await().status,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("connection lost")));
  ASSERT_TRUE(states_.AwaitUsable(false));
  Call refused(*connection_, batch.Encoding(0));
  EXPECT_TRUE(refused.done());
  EXPECT_THAT(refused.Await().status,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(address_)));

  worker_.Release();
  WorkerDescription restarted = FakeDescription();
  restarted.epoch = 2;
  worker_.SetDescription(restarted);
  StartServer(address_);
  ASSERT_TRUE(states_.AwaitTimesUsable(2));
  EXPECT_EQ(states_.last()->epoch, 2u);
  Call again(*connection_, batch.Encoding(0));
  ATELIER_EXPECT_OK(again.Await().status);
}

TEST_P(ConnectionTest, ADrainingWorkerIsLeftAndUsedAgainWhenItServes) {
  const Batch batch(1, 16, 2, 8);
  WorkerDescription draining = FakeDescription();
  draining.state = WorkerState::kDraining;
  worker_.SetDescription(draining);
  Call call(*connection_, batch.Encoding(0));
  EXPECT_THAT(call.Await().status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("draining")));
  ASSERT_TRUE(states_.AwaitUsable(false));
  worker_.SetDescription(FakeDescription());
  ASSERT_TRUE(states_.AwaitTimesUsable(2));
}

TEST_P(ConnectionTest, OtherShardsAreTakenUpWithoutABreak) {
  const Batch batch(2, 16, 2, 8);
  WorkerDescription more = FakeDescription();
  more.epoch = 2;
  more.shards.push_back({{7}, 0, 8, 0, 1});
  worker_.SetDescription(more);
  ASSERT_TRUE(states_.AwaitTimesUsable(2));
  EXPECT_EQ(states_.last()->shards, more.shards);
  EXPECT_EQ(states_.times_lost(), 0);
  Call added(*connection_, batch.Encoding(7));
  EXPECT_TRUE(SameSums(added.Await(), batch.Expected(7, more)));
  ASSERT_NE(added.Await().described, nullptr);
  EXPECT_EQ(added.Await().described->epoch, 2u);
  WorkerDescription fewer = more;
  fewer.epoch = 3;
  fewer.shards.erase(fewer.shards.begin());
  worker_.SetDescription(fewer);
  ASSERT_TRUE(states_.AwaitTimesUsable(3));
  EXPECT_EQ(states_.last()->shards, fewer.shards);
  EXPECT_EQ(states_.times_lost(), 0);
  WorkerDescription other = fewer;
  other.epoch = 4;
  other.method = "other";
  worker_.SetDescription(other);
  ASSERT_TRUE(states_.AwaitUsable(false));
  EXPECT_THAT(states_.last().status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("changed what it holds")));
}

TEST_P(ConnectionTest, AWrongAnswerIsInternalAndNamesTheWorker) {
  const Batch batch(2, 16, 2, 8);
  const auto status_after = [&](std::function<void(ForwardReply&)> tamper) {
    worker_.SetTamper(std::move(tamper));
    Call call(*connection_, batch.Encoding(0));
    return call.Await().status;
  };
  EXPECT_THAT(status_after([](ForwardReply& reply) { reply.sums[0].shard = 1; }),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("lacks shard 0")));
  EXPECT_THAT(status_after([](ForwardReply& reply) { reply.sums[0].data.pop_back(); }),
              StatusIs(absl::StatusCode::kInternal,
                       AllOf(HasSubstr(address_), HasSubstr("has 127 bytes"))));
  EXPECT_THAT(status_after([](ForwardReply& reply) { reply.sums.clear(); }),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("0 entries")));
  EXPECT_THAT(status_after([](ForwardReply& reply) {
                reply.status = absl::Status(absl::StatusCode::kAborted, "by me");
              }),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("by me")));
}

TEST_P(ConnectionTest, TwoConnectionsShareAWorker) {
  States states;
  const auto other =
      WorkerConnection::Create(address_, clock_, logger_, states.Callback(), client_security_);
  ASSERT_TRUE(states.AwaitUsable(true));
  const Batch batch(5, 16, 2, 8);
  worker_.Hold();
  Call a(*connection_, batch.Encoding(0));
  Call b(*other, batch.Encoding(1));
  ASSERT_TRUE(worker_.AwaitCalls(2));
  worker_.Release();
  EXPECT_TRUE(SameSums(a.Await(), batch.Expected(0, worker_.Describe())));
  EXPECT_TRUE(SameSums(b.Await(), batch.Expected(1, worker_.Describe())));
}

// Batches that do not fit a message, by rows or by bytes of the answer.
TEST_P(ConnectionTest, SplitsByTheWorkersLimits) {
  const Batch batch(100, 16, 2, 8);
  for (const WorkerLimits limits :
       {WorkerLimits{7, int64_t{1} << 20, 64}, WorkerLimits{8192, 10 * 16 * 4 + 5, 64}}) {
    connection_ = nullptr;
    WorkerDescription description = FakeDescription();
    description.limits = limits;
    worker_.SetDescription(description);
    StartServer(ListenAddress());
    Connect();
    const int before = worker_.calls();
    Call call(*connection_, batch.Encoding(1));
    ATELIER_ASSERT_OK(call.Await().status);
    EXPECT_TRUE(SameSums(call.Await(), batch.Expected(1, description)));
    EXPECT_EQ(worker_.calls() - before, limits.max_tokens_per_call == 7 ? 15 : 10);
  }
}

TEST(Connection, SaysWhyAWorkerCannotBeReached) {
  States states;
  SystemClock clock;
  Logger logger(Severity::kError);
  const auto connection =
      WorkerConnection::Create("unix:/nonexistent/worker.sock", clock, logger, states.Callback());
  const Batch batch(1, 16, 2, 8);
  Call call(*connection, batch.Encoding(0));
  EXPECT_THAT(call.Await().status,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("unix:/nonexistent/worker.sock")));
}

TEST(Connection, CarriesAHugeBatchInPieces) {
  WorkerDescription description = FakeDescription();
  description.hidden_size = 7168;
  description.limits = {8192, int64_t{16} << 20, 64};
  FakeWorker worker(description);
  SystemClock clock;
  Logger logger(Severity::kWarning);
  ATELIER_ASSERT_OK_AND_ASSIGN(
      const auto server,
      WorkerServer::Start(FakeServerOptions(description, "127.0.0.1:0"), worker, clock, logger));
  States states;
  const auto connection =
      WorkerConnection::Create(server->Addresses()[0], clock, logger, states.Callback());
  ASSERT_TRUE(states.AwaitUsable(true));
  const Batch batch(4096, 7168, 2, 8);
  Call call(*connection, batch.Encoding(0));
  ATELIER_ASSERT_OK(call.Await().status);
  EXPECT_TRUE(SameSums(call.Await(), batch.Expected(0, description)));
  EXPECT_GT(worker.calls(), 7);
}

}  // namespace
}  // namespace atelier
