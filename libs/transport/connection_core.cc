#include "libs/transport/connection_core.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "libs/base/check.h"
#include "libs/base/status_macros.h"
#include "libs/transport/shm_worker_channel.h"
#include "libs/transport/status_codes.h"

namespace atelier {
namespace {

class Handle final : public ForwardInFlight {
 public:
  Handle(std::shared_ptr<ConnectionCore> core, std::shared_ptr<ConnectionCall> call)
      : core_(std::move(core)), call_(std::move(call)) {}
  ~Handle() override { core_->Abandon(*call_); }

  void AwaitBriefly() override { core_->AwaitBriefly(*call_); }

 private:
  const std::shared_ptr<ConnectionCore> core_;
  const std::shared_ptr<ConnectionCall> call_;
};

class GrpcWorkerConnection final : public WorkerConnection {
 public:
  explicit GrpcWorkerConnection(std::shared_ptr<ConnectionCore> core)
      : core_(std::move(core)), supervisor_([this] { core_->Run(); }) {}
  ~GrpcWorkerConnection() override {
    core_->Stop();
    supervisor_.join();
  }

  const std::string& address() const override { return core_->address(); }

  std::unique_ptr<ForwardInFlight> Forward(std::shared_ptr<const EncodedForward> request,
                                           absl::Time deadline, DoneCallback done) override {
    auto encoded = std::static_pointer_cast<const GrpcEncodedForward>(std::move(request));
    auto call = std::make_shared<ConnectionCall>(std::move(encoded), deadline, std::move(done));
    auto handle = std::make_unique<Handle>(core_, call);
    core_->Start(call);
    return handle;
  }
  void AskForSign(std::function<void()> heard) override { core_->AskForSign(std::move(heard)); }
  void Reset(const absl::Status& reason) override { core_->Reset(reason); }

 private:
  // Shared with the handles of calls, which may outlive the connection.
  const std::shared_ptr<ConnectionCore> core_;
  std::thread supervisor_;
};

// There a byte costs less than its quantising, which the worker does on more threads.
bool IsOnThisHost(const std::string& address) {
  return absl::StartsWith(address, "unix:") || absl::StartsWith(address, kShmScheme);
}

uint64_t MicrosUntil(absl::Time deadline, absl::Time now) {
  // 0 would mean the worker's default.
  return static_cast<uint64_t>(std::max<int64_t>(1, absl::ToInt64Microseconds(deadline - now)));
}

}  // namespace

std::unique_ptr<WorkerConnection> WorkerConnection::Create(const std::string& address, Clock& clock,
                                                           const Logger& logger,
                                                           StateCallback on_state,
                                                           const ClientSecurity& security) {
  const bool shared_memory = absl::StartsWith(address, kShmScheme);
  return CreateConnection(address, clock, logger, std::move(on_state),
                          shared_memory ? OpenShmChannel : GrpcChannels(security, logger));
}

std::unique_ptr<WorkerConnection> CreateConnection(const std::string& address, Clock& clock,
                                                   const Logger& logger,
                                                   WorkerConnection::StateCallback on_state,
                                                   WorkerChannelFactory open_channel) {
  return std::make_unique<GrpcWorkerConnection>(std::make_shared<ConnectionCore>(
      address, clock, logger, std::move(on_state), std::move(open_channel)));
}

ConnectionCore::ConnectionCore(const std::string& address, Clock& clock, const Logger& logger,
                               WorkerConnection::StateCallback on_state,
                               WorkerChannelFactory open_channel)
    : address_(address),
      quantizes_rows_(!IsOnThisHost(address)),
      clock_(clock),
      logger_(logger),
      on_state_(std::move(on_state)),
      open_channel_(std::move(open_channel)),
      random_(std::random_device{}()),
      unusable_(absl::UnavailableError("not connected yet")) {}

absl::Status ConnectionCore::Named(const absl::Status& status) const {
  return Annotate(status, absl::StrCat("worker ", address_));
}

// Rows per message within the worker's limits and ours, for the request and for its answer.
absl::Status ConnectionCore::PlanLocked(ConnectionCall& call, int* rows_per_part) {
  if (peer_ == nullptr) return unusable_;
  const GrpcEncodedForward& request = call.request();
  const auto shards = peer_->shards_of_layer.find(request.layer());
  if (shards == peer_->shards_of_layer.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("it holds no experts of layer ", request.layer()));
  }
  const WorkerLimits& limits = peer_->description.limits;
  const CallStream::Limits ours = stream_->limits();
  const auto within = [&](int64_t bytes) {
    return limits.max_message_bytes > 0 ? std::min(limits.max_message_bytes, bytes) : bytes;
  };
  const int64_t answer_row_bytes = static_cast<int64_t>(request.hidden_size()) *
                                   static_cast<int64_t>(DTypeBytes(request.output_dtype())) *
                                   static_cast<int64_t>(shards->second.size());
  int64_t rows = std::min(within(ours.request_bytes) / request.row_bytes(),
                          within(ours.answer_bytes) / std::max<int64_t>(answer_row_bytes, 1));
  if (limits.max_tokens_per_call > 0) rows = std::min<int64_t>(rows, limits.max_tokens_per_call);
  if (rows < 1) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a message of max_message_bytes=", limits.max_message_bytes,
                     " to this worker has no room "
                     "for one row of ",
                     request.row_bytes(), " bytes, or ", answer_row_bytes, " of its sums"));
  }
  const int total = request.num_tokens();
  *rows_per_part = static_cast<int>(std::min<int64_t>(rows, std::max(total, 1)));
  call.Expect({peer_, &peer_->description}, shards->second,
              std::max(1, (total + *rows_per_part - 1) / *rows_per_part));
  return absl::OkStatus();
}

void ConnectionCore::Start(const std::shared_ptr<ConnectionCall>& call) {
  std::vector<std::pair<uint64_t, InFlightTable::Part>> parts;
  std::shared_ptr<CallStream> stream;
  absl::Status status;
  uint64_t epoch = 0;
  ActivationForm form = ActivationForm::kBf16;
  {
    absl::MutexLock lock(&mutex_);
    int rows_per_part = 0;
    status = PlanLocked(*call, &rows_per_part);
    if (status.ok()) {
      stream = stream_;
      epoch = peer_->description.epoch;
      if (quantizes_rows_) form = peer_->description.quantized_rows;
      int begin = 0;
      do {
        const int end = std::min(begin + rows_per_part, call->request().num_tokens());
        InFlightTable::Part part{call, begin, end};
        parts.emplace_back(in_flight_.Add(part), part);
        begin = end;
      } while (begin < call->request().num_tokens());
      if (call->deadline() < sleeping_until_) WakeLocked();
    }
  }
  if (!status.ok()) return call->Fail(Named(status));
  const uint64_t timeout_us = MicrosUntil(call->deadline(), clock_.Now());
  for (const auto& [id, part] : parts) {
    status = stream->Send(
        {id, epoch, timeout_us, call->shared_request(), part.row_begin, part.row_end, form});
    if (!status.ok()) break;
  }
  if (status.ok()) return;
  call->Fail(Named(status));
  CancelOnWorker(in_flight_.Remove(*call));
}

void ConnectionCore::AskForSign(std::function<void()> heard) {
  absl::MutexLock lock(&mutex_);
  if (stream_ == nullptr) return;
  awaiting_sign_.push_back(std::move(heard));
  suspicious_ = true;
  WakeLocked();
}

void ConnectionCore::Reset(const absl::Status& reason) {
  absl::MutexLock lock(&mutex_);
  if (stream_ == nullptr) return;
  reset_ = reason;
  WakeLocked();
}

void ConnectionCore::AwaitBriefly(const ConnectionCall& call) {
  std::shared_ptr<CallStream> stream;
  {
    absl::MutexLock lock(&mutex_);
    stream = stream_;
  }
  if (stream != nullptr) stream->AwaitBriefly([&call] { return call.IsOver(); });
}

void ConnectionCore::Abandon(ConnectionCall& call) {
  call.Abandon();
  CancelOnWorker(in_flight_.Remove(call));
}

void ConnectionCore::CancelOnWorker(const std::vector<uint64_t>& ids) {
  if (ids.empty()) return;
  std::shared_ptr<CallStream> stream;
  {
    absl::MutexLock lock(&mutex_);
    stream = stream_;
  }
  if (stream == nullptr) return;
  for (const uint64_t id : ids) stream->Cancel(id);
}

void ConnectionCore::ExpireCalls() {
  for (const InFlightTable::Expired& expired : in_flight_.TakeExpired(clock_.Now())) {
    expired.call->Fail(Named(absl::DeadlineExceededError(absl::StrCat(
        "no answer for layer ", expired.call->request().layer(), " within the deadline"))));
    CancelOnWorker(expired.ids);
  }
}

void ConnectionCore::OnStreamReady() {
  absl::MutexLock lock(&mutex_);
  stream_ready_ = true;
  WakeLocked();
}

void ConnectionCore::OnAnswer(uint64_t id,
                              absl::FunctionRef<ForwardReply(const ExpectedSums&)> decode) {
  const std::optional<InFlightTable::Part> part = in_flight_.Take(id);
  {
    absl::MutexLock lock(&mutex_);
    ++responses_;
  }
  if (!part.has_value()) return;
  ForwardReply reply = decode(part->call->ExpectedOf(part->row_begin, part->row_end));
  if (absl::IsUnavailable(reply.status) || absl::IsFailedPrecondition(reply.status)) {
    absl::MutexLock lock(&mutex_);
    suspicious_ = true;
    WakeLocked();
  }
  reply.status = Named(reply.status);
  const bool failed = !reply.status.ok();
  part->call->AddPart(part->row_begin, part->row_end, std::move(reply));
  if (failed) CancelOnWorker(in_flight_.Remove(*part->call));
}

void ConnectionCore::OnStreamDone(const absl::Status& status) {
  const absl::Status lost = absl::UnavailableError(
      status.ok() ? "connection lost" : absl::StrCat("connection lost: ", status.message()));
  StopTakingCalls(lost);
  for (const std::shared_ptr<ConnectionCall>& call : in_flight_.TakeAll()) call->Fail(Named(lost));
  // Last: the supervising thread may now let go of everything.
  absl::MutexLock lock(&mutex_);
  lost_ = lost;
  stream_done_ = true;
  WakeLocked();
}

}  // namespace atelier
