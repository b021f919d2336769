#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "libs/base/clock.h"
#include "libs/base/float16.h"
#include "libs/base/log.h"
#include "libs/transport/worker_connection.h"

namespace atelier::testing {

// Of the tiny GLM model: layers 1-3 with 16 experts of 192 columns.
inline constexpr int kTinyHidden = 256;

// Rows for the experts 0..3, as many as asked.
struct Rows {
  explicit Rows(int num_tokens)
      : values(static_cast<size_t>(num_tokens * kTinyHidden), ToBFloat16(0.25f)),
        weights(static_cast<size_t>(num_tokens * 4), 0.25f) {
    for (int i = 0; i < num_tokens * 4; ++i) ids.push_back(i % 4);
    encoding.layer = 1;
    encoding.batch = {num_tokens, kTinyHidden, values.data()};
    encoding.routing = {num_tokens, 4, ids.data(), weights.data()};
  }
  std::vector<BFloat16> values;
  std::vector<int32_t> ids;
  std::vector<float> weights;
  ForwardEncoding encoding;
};

// A client's view of one worker.
class WorkerClient {
 public:
  explicit WorkerClient(const std::string& address)
      : connection_(WorkerConnection::Create(
            address, clock_, logger_, [this](const absl::StatusOr<WorkerDescription>& state) {
              absl::MutexLock lock(&mutex_);
              if (state.ok()) description_ = *state;
            })) {}

  WorkerDescription WaitForDescription() {
    absl::MutexLock lock(&mutex_);
    const auto known = [this] { return !description_.model_digest.empty(); };
    mutex_.Await(absl::Condition(&known));
    return description_;
  }
  std::unique_ptr<ForwardInFlight> Send(int num_tokens, WorkerConnection::DoneCallback done) {
    const Rows rows(num_tokens);
    return connection_->Forward(EncodeForward(rows.encoding), clock_.Now() + absl::Minutes(2),
                                std::move(done));
  }
  ForwardReply Call(int num_tokens) { return Await(Rows(num_tokens)); }
  // Rows with another value in each element.
  ForwardReply CallRandom(int num_tokens) {
    Rows rows(num_tokens);
    std::minstd_rand random(static_cast<uint32_t>(num_tokens));
    std::uniform_real_distribution<float> uniform(-2.0f, 2.0f);
    for (BFloat16& value : rows.values) value = ToBFloat16(uniform(random));
    return Await(rows);
  }

 private:
  ForwardReply Await(const Rows& rows) {
    absl::Notification done;
    ForwardReply reply;
    const auto call = connection_->Forward(
        EncodeForward(rows.encoding), clock_.Now() + absl::Minutes(2), [&](ForwardReply answer) {
          reply = std::move(answer);
          done.Notify();
        });
    done.WaitForNotification();
    return reply;
  }

  SystemClock clock_;
  Logger logger_{Severity::kError};
  absl::Mutex mutex_;
  WorkerDescription description_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<WorkerConnection> connection_;
};

}  // namespace atelier::testing
