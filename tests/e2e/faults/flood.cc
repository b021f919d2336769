#include "tests/e2e/faults/flood.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "libs/base/status_macros.h"

namespace atelier::faults {
namespace {

// A shared ring of 16 slots lets 1,024 messages wait.
constexpr int kCalls = 2048;
constexpr int kTokens = 4;
constexpr absl::Duration kConnectTimeout = absl::Seconds(10);
constexpr absl::Duration kCallTimeout = absl::Seconds(10);

// What the worker that describes itself so can be asked.
struct Question {
  explicit Question(const WorkerDescription& worker)
      : rows(static_cast<size_t>(kTokens * worker.hidden_size), ToBFloat16(0.5f)),
        ids(static_cast<size_t>(kTokens * worker.top_k), -1),
        weights(ids.size(), 1.0f) {
    for (int token = 0; token < kTokens; ++token) {
      ids[static_cast<size_t>(token * worker.top_k)] = token % worker.num_experts;
    }
    encoding.layer = worker.shards[0].layers[0];
    encoding.batch = {kTokens, worker.hidden_size, rows.data()};
    encoding.routing = {kTokens, worker.top_k, ids.data(), weights.data()};
    encoding.model_digest = worker.model_digest;
  }
  std::vector<BFloat16> rows;
  std::vector<int32_t> ids;
  std::vector<float> weights;
  ForwardEncoding encoding;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Flood>> Flood::Start(const std::string& address) {
  std::unique_ptr<Flood> flood(new Flood);
  ATELIER_RETURN_IF_ERROR(flood->Ask(address));
  return flood;
}

absl::Status Flood::Ask(const std::string& address) {
  // Shared with the callback, which may run once more later.
  struct News {
    absl::Notification usable;
    WorkerDescription worker;
  };
  const auto news = std::make_shared<News>();
  connection_ = WorkerConnection::Create(address, clock_, logger_,
                                         [news](const absl::StatusOr<WorkerDescription>& worker) {
                                           if (!worker.ok() || news->usable.HasBeenNotified()) {
                                             return;
                                           }
                                           news->worker = *worker;
                                           news->usable.Notify();
                                         });
  if (!news->usable.WaitForNotificationWithTimeout(kConnectTimeout)) {
    return absl::UnavailableError(absl::StrCat(address, " cannot be reached"));
  }
  const std::shared_ptr<const EncodedForward> request =
      EncodeForward(Question(news->worker).encoding);
  const absl::Time deadline = clock_.Now() + kCallTimeout;
  for (int i = 0; i < kCalls; ++i) {
    calls_.push_back(connection_->Forward(request, deadline, [this](const ForwardReply& reply) {
      refused_ += absl::IsResourceExhausted(reply.status) ? 1 : 0;
    }));
  }
  if (refused_ > 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(address, " took ", kCalls, " calls at once"));
}

}  // namespace atelier::faults
