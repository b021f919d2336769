// The hop to a worker and back, with no experts between: a child process echoes each row as its
// sum. Beside every transport stands what two processes reach over the same means with nothing on
// top.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "bench/support/ping_pong.h"
#include "libs/base/command_line.h"
#include "libs/base/heap.h"
#include "libs/base/status_macros.h"
#include "libs/client/client.h"
#include "libs/transport/shm_worker_server.h"
#include "libs/transport/worker_connection.h"
#include "libs/transport/worker_server.h"
#include "nlohmann/json.hpp"

namespace atelier {
namespace {

struct Options {
  std::string json;
  std::string only;
  int tokens = 0;
  bool quick = false;
  absl::Status Validate() const { return absl::OkStatus(); }
};

constexpr char kUsage[] =
    "usage: scripts/bench transport [flags]\n"
    "\n"
    "Round trips of 1, 8 and 64 tokens (bf16 both ways) between two processes, in microseconds:\n"
    "shared memory while both sides look and while both sleep, gRPC over a Unix socket and over\n"
    "TCP on loopback, each beside the raw means under it; the same over TCP to a worker that\n"
    "takes rows as int8, quantised by the caller; and through ExpertClient, with all that it\n"
    "does for failover, in fp32.";

FlagTable Flags(Options* o) {
  return FlagTable(
      kUsage, {{"Run",
                {SwitchFlag("quick", "A tenth of the round trips.", &o->quick),
                 IntFlag("tokens", "Of each call; 0 = 1, 8 and 64.", {0, 4096}, &o->tokens),
                 StringFlag("only", "TEXT", "Only the means with TEXT in their names.", &o->only),
                 StringFlag("json", "PATH", "Also writes the results there.", &o->json)}}});
}

struct Cell {
  std::string means;
  int hidden = 0;
  int tokens = 0;
  double p50 = 0, p99 = 0, p999 = 0, least = 0;  // microseconds
  int rounds = 0;
};

Cell Summarise(std::string means, int hidden, int tokens, std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  const auto at = [&](double quantile) {
    const double last = static_cast<double>(seconds.size() - 1);
    return seconds[static_cast<size_t>(quantile * last)] * 1e6;
  };
  return {std::move(means), hidden,    tokens, at(0.5),
          at(0.99),         at(0.999), at(0),  static_cast<int>(seconds.size())};
}

class Echo final : public WorkerHandler {
 public:
  Echo(int hidden, ActivationForm quantized_rows) {
    description_.quantized_rows = quantized_rows;
    description_.state = WorkerState::kServing;
    description_.epoch = 1;
    description_.model_digest = "echo";
    description_.hidden_size = hidden;
    description_.num_experts = 8;
    description_.top_k = 8;
    description_.intermediate_size = 256;
    description_.shards = {ShardSpec{{0}, 0, 8, 0, 1}};
    description_.limits = {8192, int64_t{256} << 20, 1024};
  }
  WorkerDescription Describe() const override { return description_; }
  void Forward(ForwardRequest request, std::shared_ptr<const CallContext>,
               std::function<void(ForwardReply)> reply) override {
    const size_t count = static_cast<size_t>(request.batch.num_tokens) *
                         static_cast<size_t>(request.batch.hidden_size);
    // As many bytes as bf16 has, whatever came.
    std::string rows(count * sizeof(BFloat16), '\0');
    const TokenBatch& batch = request.batch;
    std::memcpy(rows.data(),
                batch.num_quantized > 0 ? static_cast<const void*>(batch.codes) : batch.rows,
                batch.num_quantized > 0 ? count : rows.size());
    ForwardReply answer;
    answer.sums.push_back({0, request.output_dtype == DType::kBF16 ? rows : rows + rows});
    reply(std::move(answer));
  }
  absl::StatusOr<int64_t> Drain(absl::Time) override { return 0; }

 private:
  WorkerDescription description_;
};

// Serves until it is killed.
[[noreturn]] void ServeEcho(const std::string& folder, int hidden) {
  SystemClock clock;
  const Logger logger(Severity::kWarning);
  Echo echo(hidden, ActivationForm::kBf16), quantized_echo(hidden, ActivationForm::kInt8Row);
  ShmServerOptions shm;
  shm.hidden_size = hidden;
  shm.num_experts = shm.top_k = 8;
  shm.path = absl::StrCat(folder, "/spin");
  shm.spin = absl::Milliseconds(10);
  const auto spinning = ShmWorkerServer::Start(shm, echo, clock, logger);
  shm.path = absl::StrCat(folder, "/sleep");
  shm.spin = absl::ZeroDuration();
  const auto sleeping = ShmWorkerServer::Start(shm, echo, clock, logger);
  WorkerServerOptions grpc;
  grpc.listen = {"127.0.0.1:0", absl::StrCat("unix:", folder, "/grpc")};
  grpc.hidden_size = hidden;
  grpc.num_experts = 8;
  const auto server = WorkerServer::Start(grpc, echo, clock, logger);
  grpc.listen.pop_back();
  grpc.quantized_rows = ActivationForm::kInt8Row;
  const auto quantized = WorkerServer::Start(grpc, quantized_echo, clock, logger);
  if (!spinning.ok() || !sleeping.ok() || !server.ok() || !quantized.ok()) ::_exit(1);
  (*server)->SetServing(true);
  (*quantized)->SetServing(true);
  std::ofstream(absl::StrCat(folder, "/tcp.new"))
      << (*server)->Addresses()[0] << " " << (*quantized)->Addresses()[0];
  std::rename(absl::StrCat(folder, "/tcp.new").c_str(), absl::StrCat(folder, "/tcp").c_str());
  while (true) ::pause();
}

// Calls of the echo, over some means.
class Caller {
 public:
  virtual ~Caller() = default;
  virtual absl::Status Connect(const std::string& address) = 0;

  absl::StatusOr<std::vector<double>> Measure(int hidden, int tokens, int rounds) {
    const size_t count = static_cast<size_t>(tokens);
    const std::vector<BFloat16> rows(count * static_cast<size_t>(hidden), ToBFloat16(1.0f));
    const std::vector<int32_t> ids(count * 8, 1);
    const std::vector<float> weights(count * 8, 0.5f);
    const TokenBatch batch = {tokens, hidden, rows.data()};
    const Routing routing = {tokens, 8, ids.data(), weights.data()};
    std::vector<double> seconds;
    for (int i = -rounds / 10; i < rounds; ++i) {
      const auto start = std::chrono::steady_clock::now();
      ATELIER_RETURN_IF_ERROR(Call(batch, routing));
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      if (i >= 0) seconds.push_back(took.count());
    }
    return seconds;
  }

 protected:
  virtual absl::Status Call(const TokenBatch& batch, const Routing& routing) = 0;

  SystemClock clock_;
  Logger logger_{Severity::kWarning};
};

class ConnectionCaller final : public Caller {
 public:
  absl::Status Connect(const std::string& address) override {
    absl::Notification usable;
    connection_ = WorkerConnection::Create(address, clock_, logger_, [&](const auto& news) {
      if (news.ok() && !usable.HasBeenNotified()) usable.Notify();
    });
    if (usable.WaitForNotificationWithTimeout(absl::Seconds(20))) return absl::OkStatus();
    connection_ = nullptr;
    return absl::UnavailableError(absl::StrCat(address, " does not answer"));
  }

 private:
  // With the encoding, which is part of every hop.
  absl::Status Call(const TokenBatch& batch, const Routing& routing) override {
    ForwardEncoding encoding;
    encoding.batch = batch;
    encoding.routing = routing;
    encoding.output_dtype = DType::kBF16;
    absl::Notification answered;
    ForwardReply reply;
    const auto in_flight = connection_->Forward(
        EncodeForward(encoding), clock_.Now() + absl::Seconds(10), [&](ForwardReply answer) {
          reply = std::move(answer);
          answered.Notify();
        });
    in_flight->AwaitBriefly();
    answered.WaitForNotification();
    return reply.status;
  }

  std::unique_ptr<WorkerConnection> connection_;
};

class ClientCaller final : public Caller {
 public:
  absl::Status Connect(const std::string& address) override {
    ClientOptions options;
    options.workers = {address};
    ATELIER_ASSIGN_OR_RETURN(client_, ExpertClient::Connect(options, clock_, logger_, nullptr));
    return absl::OkStatus();
  }

 private:
  absl::Status Call(const TokenBatch& batch, const Routing& routing) override {
    ForwardCall call;
    call.batch = batch;
    call.routing = routing;
    sums_.resize(static_cast<size_t>(batch.num_tokens) * static_cast<size_t>(batch.hidden_size));
    ATELIER_ASSIGN_OR_RETURN(const auto pending, client_->Forward(call));
    return pending->Wait(sums_.data());
  }

  std::unique_ptr<ExpertClient> client_;
  std::vector<float> sums_;
};

void Print(const Cell& cell) {
  std::printf("%-26s H %5d  %3d tokens  p50 %8.1f  p99 %8.1f  p999 %8.1f  least %8.1f us\n",
              cell.means.c_str(), cell.hidden, cell.tokens, cell.p50, cell.p99, cell.p999,
              cell.least);
  std::fflush(stdout);
}

// What one run measures, and where it puts it.
struct Measurement {
  int hidden = 0;
  int rounds = 0;
  const Options& options;
  std::vector<Cell> cells;

  std::vector<int> Tokens() const {
    return options.tokens > 0 ? std::vector<int>{options.tokens} : std::vector<int>{1, 8, 64};
  }
  bool Wanted(const std::string& means) const {
    return means.find(options.only) != std::string::npos;
  }
  void Add(std::string means, int tokens, std::vector<double> seconds) {
    cells.push_back(Summarise(std::move(means), hidden, tokens, std::move(seconds)));
    Print(cells.back());
  }
  absl::Status AddCalls(const std::string& means, const std::string& address, Caller&& caller) {
    if (!Wanted(means)) return absl::OkStatus();
    ATELIER_RETURN_IF_ERROR(caller.Connect(address));
    for (const int tokens : Tokens()) {
      ATELIER_ASSIGN_OR_RETURN(std::vector<double> seconds, caller.Measure(hidden, tokens, rounds));
      Add(means, tokens, std::move(seconds));
    }
    return absl::OkStatus();
  }
};

absl::Status MeasureTransports(Measurement& measurement) {
  std::string folder = "/tmp/atelier-bench-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) return absl::UnavailableError("no folder in /tmp");
  const pid_t child = ::fork();
  if (child == 0) ServeEcho(folder, measurement.hidden);
  std::string tcp, quantized_tcp;
  for (int i = 0; i < 2000 && tcp.empty(); ++i) {
    ::usleep(5000);
    std::ifstream(absl::StrCat(folder, "/tcp")) >> tcp >> quantized_tcp;
  }
  const std::vector<std::pair<std::string, std::string>> means = {
      {"shm, spinning", absl::StrCat("shm:", folder, "/spin")},
      {"shm, sleeping", absl::StrCat("shm:", folder, "/sleep")},
      {"gRPC, Unix socket", absl::StrCat("unix:", folder, "/grpc")},
      {"gRPC, TCP", tcp},
      {"gRPC, TCP, int8", quantized_tcp}};
  absl::Status status;
  for (const auto& [name, address] : means) {
    status.Update(measurement.AddCalls(name, address, ConnectionCaller()));
    status.Update(measurement.AddCalls(absl::StrCat(name, ", client"), address, ClientCaller()));
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  for (const char* name : {"/spin", "/sleep", "/grpc", "/tcp"}) {
    ::unlink(absl::StrCat(folder, name).c_str());
  }
  ::rmdir(folder.c_str());
  return status;
}

absl::Status MeasureFloors(Measurement& measurement) {
  const std::vector<std::pair<std::string, RawWay>> ways = {
      {"raw memory, spinning", RawWay::kSharedSpin},
      {"raw memory, futex", RawWay::kSharedFutex},
      {"raw Unix socket", RawWay::kUnixSocket},
      {"raw TCP", RawWay::kTcpSocket}};
  for (const auto& [name, way] : ways) {
    for (const int tokens : measurement.Tokens()) {
      if (!measurement.Wanted(name)) continue;
      const size_t bytes =
          static_cast<size_t>(tokens) * static_cast<size_t>(measurement.hidden) * 2;
      std::vector<double> seconds = RawPingPong(way, bytes, measurement.rounds);
      if (seconds.empty()) {
        return absl::UnavailableError(absl::StrCat(name, " could not be set up"));
      }
      measurement.Add(name, tokens, std::move(seconds));
    }
  }
  return absl::OkStatus();
}

// In a process of its own, since gRPC must not have started where a process forks.
absl::Status InFreshProcess(const std::function<absl::Status()>& work) {
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child == 0) {
    const absl::Status status = work();
    if (!status.ok()) std::cerr << "transport: " << status.message() << "\n";
    std::fflush(stdout);
    ::_exit(status.ok() ? 0 : 1);
  }
  int result = 0;
  ::waitpid(child, &result, 0);
  return result == 0 ? absl::OkStatus() : absl::InternalError("a measurement failed");
}

nlohmann::json ToJson(const Cell& c) {
  return {{"means", c.means}, {"hidden", c.hidden}, {"tokens", c.tokens},  {"p50_us", c.p50},
          {"p99_us", c.p99},  {"p999_us", c.p999},  {"least_us", c.least}, {"rounds", c.rounds}};
}

absl::Status Run(const Options& options) {
  const int rounds = options.quick ? 300 : 3000;
  if (!options.json.empty()) std::ofstream(options.json).close();
  for (const int hidden : {2048, 7168}) {
    ATELIER_RETURN_IF_ERROR(InFreshProcess([&] {
      Measurement measurement{hidden, rounds, options, {}};
      ATELIER_RETURN_IF_ERROR(MeasureFloors(measurement));
      ATELIER_RETURN_IF_ERROR(MeasureTransports(measurement));
      if (options.json.empty()) return absl::OkStatus();
      // A line a cell, so that each process adds its own.
      std::ofstream file(options.json, std::ios::app);
      for (const Cell& cell : measurement.cells) file << ToJson(cell).dump() << "\n";
      file.close();
      return file.good() ? absl::OkStatus()
                         : absl::UnavailableError(absl::StrCat("cannot write ", options.json));
    }));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace atelier

int main(int argc, char** argv) {
  atelier::KeepFreedMemory();  // as the services do
  atelier::Options options;
  const atelier::FlagTable flags = atelier::Flags(&options);
  if (const auto status = atelier::AnswerCommandLine("transport", flags, argc, argv,
                                                     [&] { return options.Validate(); })) {
    return *status;
  }
  const absl::Status status = atelier::Run(options);
  if (status.ok()) return 0;
  std::cerr << "transport: " << status.message() << "\n";
  return 1;
}
