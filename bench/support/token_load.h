#pragma once

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "bench/support/token_times.h"
#include "tests/e2e/faults/sequence.h"

namespace atelier {

struct TokenLoadSpec {
  std::vector<std::string> addresses;           // of frontends; streams take them in turns
  int streams = 1;                              // at once, all together
  std::vector<faults::StreamRequest> requests;  // asked for in turns; at least one
};

// Clients that stream answers, one after the other, until they are destroyed. The methods are for
// one thread.
class TokenLoad {
 public:
  explicit TokenLoad(TokenLoadSpec spec);
  ~TokenLoad();
  TokenLoad(const TokenLoad&) = delete;

  // Waits until every stream decodes: prompts, whose computing holds up the tokens of others, are
  // behind them. The failure of one, or DEADLINE_EXCEEDED.
  absl::Status AwaitDecoding() const;

  // Everything so far, by stream in order of time.
  std::vector<TokenArrival> Arrivals() const;
  // How the last answer ended that ended with an error.
  absl::Status failure() const;

 private:
  void Run(int stream);
  bool OnToken(int stream, double* last);

  const TokenLoadSpec spec_;
  std::atomic<bool> stopping_{false};
  std::atomic<size_t> next_request_{0};
  mutable absl::Mutex mutex_;
  std::vector<TokenArrival> arrivals_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace atelier
