#include "libs/client/pending_call.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/base/status_macros.h"

namespace atelier {

PendingCall::PendingCall(std::shared_ptr<const RoutingTable> table, int layer, int num_tokens,
                         std::vector<WorkerPart> parts)
    : table_(std::move(table)),
      layer_(layer),
      num_tokens_(num_tokens),
      outstanding_(parts.size()),
      parts_(std::move(parts)) {}

// A handle's destructor waits for a callback that is running, so none outlives the members.
PendingCall::~PendingCall() { in_flight_.clear(); }

void PendingCall::Keep(std::unique_ptr<ForwardInFlight> in_flight) {
  in_flight_.push_back(std::move(in_flight));
}

void PendingCall::Finish(size_t part, ForwardReply reply) {
  absl::MutexLock lock(&mutex_);
  if (!reply.status.ok() && error_.ok()) error_ = reply.status;
  parts_[part].reply = std::move(reply);
  --outstanding_;
}

absl::Status PendingCall::Wait(float* out) {
  {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](PendingCall* call) ABSL_NO_THREAD_SAFETY_ANALYSIS { return call->Settled(); }, this));
    if (!error_.ok()) return error_;
  }
  std::fill_n(out, static_cast<size_t>(num_tokens_) * static_cast<size_t>(table_->hidden_size()),
              0.0f);
  for (const RoutedShard& shard : *table_->Layer(layer_)) {
    ATELIER_RETURN_IF_ERROR(AddShard(shard, out));
  }
  return absl::OkStatus();
}

// A row that was not sent to the shard's worker has no expert there: its sum is zero, and adding
// zero changes no bit.
absl::Status PendingCall::AddShard(const RoutedShard& shard, float* out) const {
  const size_t hidden = static_cast<size_t>(table_->hidden_size());
  for (const WorkerPart& part : parts_) {
    if (part.worker != shard.worker) continue;
    const auto sum = std::find_if(part.reply.sums.begin(), part.reply.sums.end(),
                                  [&](const ShardSum& s) { return s.shard == shard.shard; });
    // The connection checked the answer against what the worker holds now; the table says what it
    // held when the routes were made.
    if (sum == part.reply.sums.end() ||
        sum->data.size() != part.rows.size() * hidden * sizeof(float)) {
      return absl::UnavailableError(absl::StrCat("layer ", layer_, ": the answer lacks shard ",
                                                 shard.shard, " as it was described"));
    }
    std::vector<float> values(hidden);
    for (size_t r = 0; r < part.rows.size(); ++r) {
      std::memcpy(values.data(), sum->data.data() + r * hidden * sizeof(float),
                  hidden * sizeof(float));
      float* to = out + static_cast<size_t>(part.rows[r]) * hidden;
      for (size_t j = 0; j < hidden; ++j) to[j] += values[j];
    }
  }
  return absl::OkStatus();
}

}  // namespace atelier
