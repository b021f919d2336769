#include "libs/testing/fake_worker.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace atelier::testing {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(1);

bool HoldsLayer(const ShardSpec& shard, int layer) {
  for (const int held : shard.layers) {
    if (held == layer) return true;
  }
  return false;
}

// Sum over the row's choices that the shard holds of weight x (expert's factor) x slice share.
float FactorOf(const ShardSpec& shard, const ForwardRequest& request, int token) {
  float factor = 0.0f;
  const size_t first = static_cast<size_t>(token) * static_cast<size_t>(request.routing.top_k);
  for (int j = 0; j < request.routing.top_k; ++j) {
    const int32_t id = request.routing.expert_ids[first + static_cast<size_t>(j)];
    if (id < shard.expert_begin || id >= shard.expert_end) continue;
    factor += request.routing.weights[first + static_cast<size_t>(j)] *
              static_cast<float>(id + 1 + 16 * request.layer);
  }
  return factor / static_cast<float>(shard.slice_count);
}

float RowElement(const TokenBatch& batch, size_t token, size_t i) {
  const size_t at = token * static_cast<size_t>(batch.hidden_size) + i;
  if (batch.num_quantized == 0) return ToFloat(batch.rows[at]);
  const size_t num_scales = ScalesPerRow(batch.quantized_form, batch.hidden_size);
  const size_t block = num_scales == 1 ? 0 : i / kInt8BlockInputs;
  return static_cast<float>(batch.codes[at]) * batch.scales[token * num_scales + block];
}

std::string SumOf(const ShardSpec& shard, const ForwardRequest& request) {
  const size_t hidden = static_cast<size_t>(request.batch.hidden_size);
  const size_t element = DTypeBytes(request.output_dtype);
  std::string data(static_cast<size_t>(request.batch.num_tokens) * hidden * element, '\0');
  char* out = data.data();
  for (int token = 0; token < request.batch.num_tokens; ++token) {
    const float factor = FactorOf(shard, request, token);
    for (size_t i = 0; i < hidden; ++i, out += element) {
      const float value = RowElement(request.batch, static_cast<size_t>(token), i) * factor;
      const BFloat16 rounded = ToBFloat16(value);
      std::memcpy(out, element == sizeof(float) ? static_cast<const void*>(&value) : &rounded,
                  element);
    }
  }
  return data;
}

}  // namespace

WorkerDescription FakeDescription() {
  WorkerDescription description;
  description.version = "fake";
  description.state = WorkerState::kServing;
  description.epoch = 1;
  description.model_digest = "d1";
  description.model_type = "fake_moe";
  description.method = "BF16";
  description.isa = "scalar";
  description.hidden_size = 16;
  description.num_experts = 8;
  description.top_k = 2;
  description.intermediate_size = 64;
  description.shards = {ShardSpec{{0, 1, 2, 3}, 0, 8, 0, 1}};
  description.limits = {8192, int64_t{256} << 20, 1024};
  return description;
}

WorkerDescription FakeWorker::Describe() const {
  absl::MutexLock lock(&mutex_);
  return description_;
}

void FakeWorker::Forward(ForwardRequest request, std::shared_ptr<const CallContext> context,
                         std::function<void(ForwardReply)> reply) {
  Held held{std::move(request), std::move(context), std::move(reply)};
  {
    absl::MutexLock lock(&mutex_);
    ++calls_;
    tokens_ += held.request.batch.num_tokens;
    last_form_ = held.request.batch.quantized_form;
    if (holding_) {
      held_.push_back(std::move(held));
      return;
    }
  }
  Answer(std::move(held));
}

void FakeWorker::Answer(Held held) {
  WorkerDescription description;
  std::function<void(ForwardReply&)> tamper;
  {
    absl::MutexLock lock(&mutex_);
    description = description_;
    tamper = tamper_;
  }
  ForwardReply reply = Compute(description, held.request);
  if (tamper) tamper(reply);
  held.reply(std::move(reply));
}

ForwardReply FakeWorker::Compute(const WorkerDescription& description,
                                 const ForwardRequest& request) {
  ForwardReply reply;
  if (description.state == WorkerState::kDraining) {
    reply.status = absl::UnavailableError("draining");
  } else if (request.epoch != 0 && request.epoch != description.epoch) {
    reply.status = absl::FailedPreconditionError(absl::StrCat("epoch=", request.epoch));
  }
  if (!reply.status.ok()) return reply;
  for (size_t i = 0; i < description.shards.size(); ++i) {
    const ShardSpec& shard = description.shards[i];
    if (!HoldsLayer(shard, request.layer)) continue;
    reply.sums.push_back({static_cast<int>(i), SumOf(shard, request)});
  }
  if (reply.sums.empty()) {
    reply.status = absl::InvalidArgumentError(absl::StrCat("layer=", request.layer));
  }
  return reply;
}

absl::StatusOr<int64_t> FakeWorker::Drain(absl::Time) {
  absl::MutexLock lock(&mutex_);
  description_.state = WorkerState::kDraining;
  return static_cast<int64_t>(held_.size());
}

void FakeWorker::SetDescription(WorkerDescription description) {
  absl::MutexLock lock(&mutex_);
  description_ = std::move(description);
}

void FakeWorker::Hold() {
  absl::MutexLock lock(&mutex_);
  holding_ = true;
}

void FakeWorker::Release() {
  std::vector<Held> held;
  {
    absl::MutexLock lock(&mutex_);
    holding_ = false;
    held.swap(held_);
  }
  while (!held.empty()) {
    Answer(std::move(held.back()));
    held.pop_back();
  }
}

void FakeWorker::SetTamper(std::function<void(ForwardReply&)> tamper) {
  absl::MutexLock lock(&mutex_);
  tamper_ = std::move(tamper);
}

bool FakeWorker::AwaitCalls(int count) const {
  const auto come = [this, count]()
                        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return calls_ >= count; };
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&come), kPatience);
}

bool FakeWorker::AwaitCancelled() const {
  const absl::Time give_up = absl::Now() + kPatience;
  while (absl::Now() < give_up) {
    {
      absl::MutexLock lock(&mutex_);
      for (const Held& held : held_) {
        if (held.context->Cancelled()) return true;
      }
    }
    absl::SleepFor(absl::Milliseconds(1));  // a context has no way to be waited for
  }
  return false;
}

void FakeWorker::OnRefused(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  refused_.push_back(status.code());
}

std::vector<absl::StatusCode> FakeWorker::refused() const {
  absl::MutexLock lock(&mutex_);
  return refused_;
}

int FakeWorker::calls() const {
  absl::MutexLock lock(&mutex_);
  return calls_;
}

int64_t FakeWorker::tokens() const {
  absl::MutexLock lock(&mutex_);
  return tokens_;
}

ActivationForm FakeWorker::last_form() const {
  absl::MutexLock lock(&mutex_);
  return last_form_;
}

WorkerServerOptions FakeServerOptions(const WorkerDescription& description,
                                      const std::string& address) {
  WorkerServerOptions options;
  options.listen = {address};
  options.hidden_size = description.hidden_size;
  options.num_experts = description.num_experts;
  options.quantized_rows = description.quantized_rows;
  options.max_tokens_per_call = description.limits.max_tokens_per_call;
  options.max_message_bytes = description.limits.max_message_bytes;
  return options;
}

}  // namespace atelier::testing
