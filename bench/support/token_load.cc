#include "bench/support/token_load.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/e2e/faults/stream_client.h"

namespace atelier {
namespace {

// After an error, and between looks.
constexpr absl::Duration kPatience = absl::Milliseconds(5);
constexpr absl::Duration kStartTimeout = absl::Seconds(60);
constexpr int kTokensOfStart = 4;  // of each stream

bool AllDecode(const std::vector<TokenArrival>& arrivals, int streams) {
  std::vector<int> tokens(static_cast<size_t>(streams));
  for (const TokenArrival& arrival : arrivals) ++tokens[static_cast<size_t>(arrival.stream)];
  return *std::min_element(tokens.begin(), tokens.end()) >= kTokensOfStart;
}

}  // namespace

TokenLoad::TokenLoad(TokenLoadSpec spec) : spec_(std::move(spec)) {
  for (int stream = 0; stream < spec_.streams; ++stream) {
    threads_.emplace_back([this, stream] { Run(stream); });
  }
}

TokenLoad::~TokenLoad() {
  stopping_ = true;
  for (std::thread& thread : threads_) thread.join();
}

absl::Status TokenLoad::AwaitDecoding() const {
  const absl::Time give_up = absl::Now() + kStartTimeout;
  while (!AllDecode(Arrivals(), spec_.streams)) {
    if (absl::Status status = failure(); !status.ok()) return status;
    if (absl::Now() > give_up) {
      return absl::DeadlineExceededError(absl::StrCat("not every stream from ", spec_.addresses[0],
                                                      " has begun within ",
                                                      absl::FormatDuration(kStartTimeout)));
    }
    absl::SleepFor(kPatience);
  }
  return absl::OkStatus();
}

std::vector<TokenArrival> TokenLoad::Arrivals() const {
  absl::MutexLock lock(&mutex_);
  return arrivals_;
}

absl::Status TokenLoad::failure() const {
  absl::MutexLock lock(&mutex_);
  return failure_;
}

void TokenLoad::Run(int stream) {
  const std::string& address =
      spec_.addresses[static_cast<size_t>(stream) % spec_.addresses.size()];
  const std::unique_ptr<faults::StreamClient> client = faults::StreamClient::Create(address);
  while (!stopping_) {
    const size_t number = next_request_.fetch_add(1);
    double last = 0;
    const faults::Sequence answer = client->Generate(
        spec_.requests[number % spec_.requests.size()],
        absl::StrCat("bench-", absl::ToUnixNanos(absl::Now()), "-", number), [this, stream, &last] {
          return OnToken(stream, &last) ? faults::StreamStep::kReadOn : faults::StreamStep::kHangUp;
        });
    if (answer.status.ok() || stopping_) continue;
    {
      absl::MutexLock lock(&mutex_);
      failure_ = answer.status;
    }
    absl::SleepFor(kPatience);
  }
}

bool TokenLoad::OnToken(int stream, double* last) {
  const double now = SteadyNow();
  const double gap = *last > 0 ? now - *last : 0;
  *last = now;
  absl::MutexLock lock(&mutex_);
  arrivals_.push_back({now, stream, gap});
  return !stopping_;
}

}  // namespace atelier
