#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "libs/testing/child_process.h"
#include "libs/testing/run_program.h"
#include "libs/testing/synthetic_checkpoint.h"
#include "libs/testing/temp_dir.h"
#include "nlohmann/json.hpp"
#include "proto/compat/sglang_scheduler.grpc.pb.h"

// What `atelier inspect` says that processes take, beside what the real ones take.

namespace atelier {
namespace {

namespace wire = ::sglang::grpc::scheduler;
using ::atelier::testing::ChildProcess;
using ::nlohmann::json;

constexpr double kTolerance = 0.05;  // that the plan promises
constexpr int kContext = 2048;
constexpr int kVocabulary = 48000;
// Rows of the largest call: what a frontend sends of a prompt at once.
constexpr int kChunk = 512;

// A program that says in a file when it serves, and where.
class Server {
 public:
  Server(const std::string& folder, std::vector<std::string> command) : ready_(folder + "/ready") {
    std::filesystem::create_directory(folder);
    command.insert(command.end(), {"--metrics-address=127.0.0.1:0", "--ready-file=" + ready_});
    process_ = std::make_unique<ChildProcess>(command, folder + "/log");
  }

  // Waits until it serves; empty when it has ended instead.
  std::string Address() {
    std::string address;
    testing::WaitUntil([&] {
      std::ifstream file(ready_);
      for (std::string line; std::getline(file, line);) {
        absl::string_view rest = line;
        if (absl::ConsumePrefix(&rest, "listen=")) address = std::string(rest);
      }
      return !address.empty() || !process_->Running();
    });
    EXPECT_NE(address, "") << process_->Log();
    return address;
  }
  // Of a line of the kernel's account, in bytes.
  double Memory(absl::string_view name) const {
    std::ifstream file(absl::StrCat("/proc/", process_->pid(), "/status"));
    for (std::string line; std::getline(file, line);) {
      absl::string_view rest = line;
      double kib = 0;
      if (absl::ConsumePrefix(&rest, name) && absl::ConsumePrefix(&rest, ":") &&
          absl::ConsumeSuffix(&rest, " kB") && absl::SimpleAtod(rest, &kib)) {
        return kib * 1024;
      }
    }
    ADD_FAILURE() << name << " is not there";
    return 0;
  }

 private:
  std::string ready_;
  std::unique_ptr<ChildProcess> process_;
};

class MemoryPlanTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = std::make_unique<testing::TempDir>();
    const json shape = {{"hidden_size", 512},
                        {"num_hidden_layers", 4},
                        {"num_experts", 32},
                        {"num_experts_per_tok", 4},
                        {"moe_intermediate_size", 512},
                        {"vocab_size", kVocabulary},
                        {"num_attention_heads", 8},
                        {"num_key_value_heads", 8},
                        {"head_dim", 128},
                        {"max_position_embeddings", kContext}};
    testing::WriteSyntheticCheckpoint(
        model_->path(), {.config_json = testing::TinyQwen3MoeConfig(shape.dump()), .seed = 4});
  }
  static void TearDownTestSuite() { model_.reset(); }

  static json Inspect(std::vector<std::string> flags) {
    flags.insert(flags.begin(), {ATELIER_BINARY, "inspect", model_->path(), "--json",
                                 absl::StrCat("--max-tokens-per-call=", kChunk)});
    const testing::Outcome outcome = testing::RunProgram(flags);
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    return json::parse(outcome.output, nullptr, false);
  }
  std::unique_ptr<Server> StartWorker(std::vector<std::string> flags) {
    flags.insert(flags.begin(),
                 {ATELIER_WORKER_BINARY, "--model-path=" + model_->path(), "--listen=127.0.0.1:0",
                  "--no-pin", absl::StrCat("--max-tokens-per-call=", kChunk)});
    return std::make_unique<Server>(dir_.File(absl::StrCat("server-", num_servers_++)), flags);
  }
  static void ExpectAsPlanned(double measured, const json& planned) {
    const double bytes = planned.get<double>();
    EXPECT_LE(std::abs(measured - bytes), kTolerance * measured)
        << "planned " << bytes << ", measured " << measured;
    ::testing::Test::RecordProperty("planned_over_measured", absl::StrCat(bytes / measured));
    std::cout << "planned " << bytes / 1048576 << " MiB, measured " << measured / 1048576
              << " MiB\n";
  }

  static inline std::unique_ptr<testing::TempDir> model_;
  testing::TempDir dir_;
  int num_servers_ = 0;
};

TEST_F(MemoryPlanTest, IsWhatWorkersTake) {
  for (const std::string method : {"auto", "int8"}) {
    const json plan = Inspect({"--workers=2", "--method=" + method});
    for (const int slice : {0, 1}) {
      const auto worker =
          StartWorker({absl::StrCat("--shard-slice=", slice, "/2"), "--method=" + method});
      worker->Address();
      ExpectAsPlanned(worker->Memory("VmRSS"), plan["workers"][slice]["resident_bytes"]);
    }
  }
}

TEST_F(MemoryPlanTest, IsWhatWorkersTakeThatMapAStoreOrSkipExperts) {
  const std::string store = dir_.File("store"), skip = dir_.File("skip");
  std::filesystem::create_directory(store);
  const json whole = Inspect({});
  for (int start = 0; start < 2; ++start) {  // cold, then warm
    const auto worker = StartWorker({"--store-dir=" + store, "--populate"});
    worker->Address();
    ExpectAsPlanned(worker->Memory("VmRSS"), whole["workers"][0]["resident_bytes"]);
  }
  const json moved = Inspect({"--gpu-experts=20"});
  std::ofstream(skip) << "0: 0-19\n1: 2-21\n2: 12-31\n3: 0-18, 20\n";
  const auto worker = StartWorker({"--skip-experts=" + skip});
  worker->Address();
  ExpectAsPlanned(worker->Memory("VmRSS"), moved["workers"][0]["resident_bytes"]);
}

// A prompt that fills the KV cache.
void Generate(const std::string& address, int num_tokens) {
  const auto stub = wire::SglangScheduler::NewStub(
      grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  wire::GenerateRequest request;
  request.set_request_id("long");
  for (int i = 0; i < num_tokens; ++i) {
    request.mutable_tokenized()->add_input_ids(static_cast<uint32_t>(i * 37 % kVocabulary));
  }
  request.mutable_sampling_params()->set_max_new_tokens(2);
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, request);
  wire::GenerateResponse response;
  while (reader->Read(&response)) {
  }
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(MemoryPlanTest, IsWhatAFrontendTakesAtFirstAndAtMost) {
  const json usual = Inspect({})["frontend"];
  const int64_t cache = kContext * usual["kv_bytes_per_token"].get<int64_t>();
  const int64_t memory =
      usual["most_bytes"].get<int64_t>() - usual["kv_cache_bytes"].get<int64_t>() + cache;
  const json plan = Inspect({absl::StrCat("--frontend-memory=", memory)});
  EXPECT_EQ(plan["frontend"]["kv_tokens"], kContext);
  const auto worker = StartWorker({});
  Server frontend(
      dir_.File("frontend"),
      {ATELIER_FRONTEND_BINARY, "--model-path=" + model_->path(), "--workers=" + worker->Address(),
       "--port=0",
       absl::StrCat("--kv-cache-bytes=", plan["frontend"]["kv_cache_bytes"].get<int64_t>())});
  const std::string address = frontend.Address();
  ASSERT_NE(address, "");
  ExpectAsPlanned(frontend.Memory("VmRSS"), plan["frontend"]["resident_bytes"]);
  Generate(address, kContext - 2);
  ExpectAsPlanned(frontend.Memory("VmRSS"), plan["frontend"]["most_bytes"]);
  ExpectAsPlanned(worker->Memory("VmRSS"), plan["workers"][0]["most_bytes"]);
}

// The workers hold none of the experts that the frontend's device computes.
TEST_F(MemoryPlanTest, IsWhatBothTakeWhereTheFrontendComputesExperts) {
  const std::string file = dir_.File("experts");
  std::ofstream(file) << "0: 0-19\n1: 2-21\n2: 12-31\n3: 0-18, 20\n";
  const json usual = Inspect({"--skip-experts=" + file})["frontend"];
  const int64_t cache = kContext * usual["kv_bytes_per_token"].get<int64_t>();
  const int64_t memory =
      usual["most_bytes"].get<int64_t>() - usual["kv_cache_bytes"].get<int64_t>() + cache;
  const json plan = Inspect({"--skip-experts=" + file, absl::StrCat("--frontend-memory=", memory)});
  const auto worker = StartWorker({"--skip-experts=" + file});
  Server frontend(
      dir_.File("frontend"),
      {ATELIER_FRONTEND_BINARY, "--model-path=" + model_->path(), "--workers=" + worker->Address(),
       "--device-experts=" + file, "--port=0",
       absl::StrCat("--kv-cache-bytes=", plan["frontend"]["kv_cache_bytes"].get<int64_t>())});
  const std::string address = frontend.Address();
  ASSERT_NE(address, "");
  ExpectAsPlanned(frontend.Memory("VmRSS"), plan["frontend"]["resident_bytes"]);
  ExpectAsPlanned(worker->Memory("VmRSS"), plan["workers"][0]["resident_bytes"]);
  Generate(address, kContext - 2);  // fails where a row is sent for an expert that is skipped
  ExpectAsPlanned(frontend.Memory("VmRSS"), plan["frontend"]["most_bytes"]);
}

}  // namespace
}  // namespace atelier
