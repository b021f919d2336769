#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "libs/client/client.h"
#include "libs/metrics/metrics.h"
#include "libs/testing/fake_worker.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/temp_dir.h"
#include "libs/transport/shm_worker_server.h"
#include "libs/transport/worker_server.h"

namespace atelier::testing {

// A fake worker that serves over gRPC or shared memory ("shm:/path") and can be killed and started
// again at the same address.
class ServedWorker {
 public:
  ServedWorker(const WorkerDescription& description, std::string address)
      : worker(description), address_(std::move(address)) {
    Start();
  }

  void Start() {
    if (absl::StartsWith(address_, "shm:")) return StartSharing();
    auto server = WorkerServer::Start(FakeServerOptions(worker.Describe(), address_), worker,
                                      clock_, logger_);
    ASSERT_THAT(server, IsOk());
    server_ = std::move(server).value();
    server_->SetServing(true);
    address_ = server_->Addresses().at(0);  // the same port after a restart
  }
  void Kill() {
    if (server_ != nullptr) server_->Shutdown(absl::ZeroDuration());
    if (shm_server_ != nullptr) shm_server_->Shutdown(absl::ZeroDuration());
    server_.reset();
    shm_server_.reset();
  }
  const std::string& address() const { return address_; }

  FakeWorker worker;

 private:
  void StartSharing() {
    const WorkerDescription description = worker.Describe();
    ShmServerOptions options;
    options.path = address_.substr(4);
    options.bytes_per_client = int64_t{4} << 20;
    options.hidden_size = description.hidden_size;
    options.num_experts = description.num_experts;
    options.top_k = description.top_k;
    options.shards_per_layer = static_cast<int>(description.shards.size());
    auto server = ShmWorkerServer::Start(options, worker, clock_, logger_);
    ASSERT_THAT(server, IsOk());
    shm_server_ = std::move(server).value();
  }

  SystemClock clock_;
  Logger logger_{Severity::kError};
  std::string address_;
  std::unique_ptr<WorkerServer> server_;
  std::unique_ptr<ShmWorkerServer> shm_server_;
};

inline WorkerDescription With(std::vector<ShardSpec> shards) {
  WorkerDescription description = FakeDescription();
  description.shards = std::move(shards);
  return description;
}

inline const std::vector<int> kLayers = {0, 1, 2, 3};

// Three tokens of H = 16, top-2 of 8 experts; token 1 skips its second expert.
struct Call {
  Call() {
    for (int i = 0; i < 3 * 16; ++i) rows.push_back(ToBFloat16(static_cast<float>(i % 7)));
  }
  ForwardCall For(int layer) const {
    ForwardCall call;
    call.layer = layer;
    call.batch = {3, 16, rows.data()};
    call.routing = {3, 2, ids.data(), weights.data()};
    return call;
  }
  // What whole experts answer: expert e of layer l multiplies by e + 1 + 16 l.
  std::vector<float> Expected(int layer) const {
    std::vector<float> sums;
    for (size_t t = 0; t < 3; ++t) {
      float factor = 0;
      for (size_t j = 2 * t; j < 2 * t + 2; ++j) {
        if (ids[j] >= 0) factor += weights[j] * static_cast<float>(ids[j] + 1 + 16 * layer);
      }
      for (size_t i = 0; i < 16; ++i) sums.push_back(ToFloat(rows[t * 16 + i]) * factor);
    }
    return sums;
  }
  std::vector<BFloat16> rows;
  std::vector<int32_t> ids = {0, 7, 5, -1, 2, 3};
  std::vector<float> weights = {0.5f, 0.5f, 1.0f, 9.0f, 0.25f, 0.75f};
};

// A client of such workers.
class ClientTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<ExpertClient>> Connect(const std::vector<std::string>& addresses) {
    options_.workers = addresses;
    return ExpertClient::Connect(options_, clock_, logger_, &metrics_);
  }
  absl::Status Run(ExpertClient& client, int layer, std::vector<float>* sums) {
    auto pending = client.Forward(call_.For(layer));
    if (!pending.ok()) return pending.status();
    sums->assign(3 * 16, -1.0f);
    return (*pending)->Wait(sums->data());
  }
  // Until calls succeed again: reconnecting is not instantaneous.
  bool RunsWithin(ExpertClient& client, absl::Duration patience) {
    const absl::Time deadline = absl::Now() + patience;
    std::vector<float> sums;
    while (absl::Now() < deadline) {
      if (Run(client, 1, &sums).ok()) return true;
      absl::SleepFor(absl::Milliseconds(10));
    }
    return false;
  }

  // Until Ready() is, or is not, OK.
  bool EndsReady(ExpertClient& client, bool ready) {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (absl::Now() < deadline) {
      if (client.Ready().ok() == ready) return true;
      absl::SleepFor(absl::Milliseconds(10));
    }
    return false;
  }

  SystemClock clock_;
  Logger logger_{Severity::kError};
  prometheus::Registry registry_;
  ClientMetrics metrics_{registry_};
  ClientOptions options_;
  Call call_;
  TempDir dir_;
};

}  // namespace atelier::testing
