#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "tests/e2e/faults/excuses.h"
#include "tests/e2e/faults/report.h"
#include "tests/e2e/faults/sequence.h"
#include "tests/e2e/faults/stream_client.h"

namespace atelier::faults {

struct LoadSpec {
  std::vector<StreamRequest> requests;
  int frontends = 1;
  int clients_per_frontend = 4;
  uint64_t seed = 1;  // of the order in which each client asks
  // Where a frontend serves; empty while it does not. Asked from any thread.
  std::function<std::string(int frontend)> address;
  // Told of every sequence that was lost or changed, from any thread, one at a time.
  std::function<void(const std::string&)> on_failure;
};

// Clients that stream the same requests again and again and judge every answer. The methods are
// for one thread.
class Load {
 public:
  Load(LoadSpec spec, Excuses& excuses);
  ~Load();

  // Without faults: asks every frontend for everything once, all clients at once. Remembers the
  // answers; INTERNAL when two frontends or batches differ already.
  absl::Status LearnAnswers();

  void Start();  // endless streams
  void Pause();  // waits until none runs
  void Resume();
  void Stop();  // waits until they have ended

  // The next `count` streams that get a token are ended by their client.
  void EndSome(int count, StreamStep how);

  // The longest time that a stream has waited for a token since the last call, waits that go on
  // included.
  absl::Duration TakeLongestSilence();

  Tally tally() const;

 private:
  struct Client {
    int frontend = 0;
    uint64_t seed = 0;
    std::thread thread;
    absl::Time silent_since = absl::InfiniteFuture();  // infinite = no stream runs
    std::string ended_id;                              // of the last stream that it ended itself
    std::string stub_address;
    std::unique_ptr<StreamClient> stub;
  };

  void Run(Client& client);
  bool AwaitTurn();  // false = stop
  void StreamOnce(Client& client, size_t request);
  Sequence Ask(Client& client, size_t request, const std::string& id);
  StreamStep OnToken(Client& client);
  void Record(const Client& client, size_t request, const Judgement& judgement, size_t tokens);
  void SetSilentSince(Client& client, absl::Time since) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const LoadSpec spec_;
  Excuses& excuses_;
  std::vector<Sequence> answers_;  // by request; written before Start
  mutable absl::Mutex mutex_;
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  int to_end_ ABSL_GUARDED_BY(mutex_) = 0;
  StreamStep how_to_end_ ABSL_GUARDED_BY(mutex_) = StreamStep::kHangUp;
  absl::Duration longest_silence_ ABSL_GUARDED_BY(mutex_);
  Tally tally_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Client>> clients_;
};

}  // namespace atelier::faults
