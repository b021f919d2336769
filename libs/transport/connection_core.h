#pragma once

#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "libs/transport/call_stream.h"
#include "libs/transport/in_flight_table.h"
#include "libs/transport/worker_channel.h"
#include "libs/transport/worker_connection.h"
#include "libs/transport/worker_session.h"

namespace atelier {

// What a connection and the handles of its calls share. One thread of its own opens sessions, one
// after the other, enforces deadlines and sends heartbeats. Thread-safe.
class ConnectionCore final : public CallStream::Observer {
 public:
  ConnectionCore(const std::string& address, Clock& clock, const Logger& logger,
                 WorkerConnection::StateCallback on_state, WorkerChannelFactory open_channel);

  const std::string& address() const { return address_; }
  // Returns when Stop was called and every call has ended.
  void Run();
  void Stop();

  void Start(const std::shared_ptr<ConnectionCall>& call);
  // As those of WorkerConnection.
  void AskForSign(std::function<void()> heard);
  void Reset(const absl::Status& reason);
  // The callback will not run any more, and the worker is told.
  void Abandon(ConnectionCall& call);
  // As ForwardInFlight::AwaitBriefly.
  void AwaitBriefly(const ConnectionCall& call);

 private:
  // A worker as it described itself.
  struct Peer {
    WorkerDescription description;
    std::map<int, std::vector<int>> shards_of_layer;
  };

  // Other shards that the worker says it holds, and when that is taken up.
  struct Change {
    WorkerDescription to;
    absl::Time at = absl::InfiniteFuture();
    bool holds_less = false;
  };

  void OnStreamReady() override;
  void OnAnswer(uint64_t id, absl::FunctionRef<ForwardReply(const ExpectedSums&)> decode) override;
  void OnStreamDone(const absl::Status& status) override;

  // The supervising thread's steps; each returns why the worker is not, or no longer, usable.
  absl::Status RunSession();
  absl::StatusOr<WorkerDescription> AwaitDescription(WorkerSession& session);
  absl::Status UseStream(WorkerSession& session, const WorkerDescription& description);
  absl::Status AwaitStream();
  absl::Status Serve(WorkerSession& session, WorkerDescription description);
  void Consider(const WorkerDescription& now, const WorkerDescription& used, Change& change);
  void TakeUp(const Change& change);
  // OK while the stream stands and nobody asked to stop.
  absl::Status CheckStream();
  void GaveSign();
  uint64_t ResponsesSoFar();
  bool HeartbeatIsDue(absl::Time planned);
  // Returns at `until`, at the next deadline of a call, or when something happened.
  void WaitForEvent(absl::Time until);
  void Publish(const WorkerDescription& description);
  void StopTakingCalls(const absl::Status& reason);
  void WakeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Status PlanLocked(ConnectionCall& call, int* rows_per_part)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ExpireCalls();
  void CancelOnWorker(const std::vector<uint64_t>& ids);
  absl::Status Named(const absl::Status& status) const;

  const std::string address_;
  const bool quantizes_rows_;  // for a worker that takes them so
  Clock& clock_;
  const Logger& logger_;
  const WorkerConnection::StateCallback on_state_;
  const WorkerChannelFactory open_channel_;
  std::minstd_rand random_;  // the supervising thread's, as is the next one
  absl::Duration backoff_;
  InFlightTable in_flight_;

  absl::Mutex mutex_;
  absl::CondVar wake_;  // of the supervising thread
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool wake_requested_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time sleeping_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::shared_ptr<CallStream> stream_ ABSL_GUARDED_BY(mutex_);  // null = no stream
  bool stream_ready_ ABSL_GUARDED_BY(mutex_) = false;
  bool stream_done_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);        // why the stream ended
  absl::Status reset_ ABSL_GUARDED_BY(mutex_);       // why it is to end, by our own wish
  uint64_t responses_ ABSL_GUARDED_BY(mutex_) = 0;   // so far
  bool suspicious_ ABSL_GUARDED_BY(mutex_) = false;  // a heartbeat is wanted before its time
  // Who wants to know when the worker answers a heartbeat.
  std::vector<std::function<void()>> awaiting_sign_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Peer> peer_ ABSL_GUARDED_BY(mutex_);  // null = takes no calls
  absl::Status unusable_ ABSL_GUARDED_BY(mutex_);             // why, while peer_ is null
};

// WorkerConnection::Create over other channels.
std::unique_ptr<WorkerConnection> CreateConnection(const std::string& address, Clock& clock,
                                                   const Logger& logger,
                                                   WorkerConnection::StateCallback on_state,
                                                   WorkerChannelFactory open_channel);

}  // namespace atelier
