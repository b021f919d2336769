#include "tests/e2e/faults/load.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "libs/base/status_macros.h"

namespace atelier::faults {
namespace {

// After an error, and while a frontend is away.
constexpr absl::Duration kPatience = absl::Milliseconds(20);

}  // namespace

Load::Load(LoadSpec spec, Excuses& excuses) : spec_(std::move(spec)), excuses_(excuses) {
  for (int frontend = 0; frontend < spec_.frontends; ++frontend) {
    for (int i = 0; i < spec_.clients_per_frontend; ++i) {
      clients_.push_back(std::make_unique<Client>());
      clients_.back()->frontend = frontend;
      clients_.back()->seed = spec_.seed + clients_.size();
    }
  }
}

Load::~Load() { Stop(); }

absl::Status Load::LearnAnswers() {
  const size_t num_requests = spec_.requests.size();
  std::vector<std::vector<Sequence>> by_frontend(static_cast<size_t>(spec_.frontends),
                                                 std::vector<Sequence>(num_requests));
  std::vector<std::thread> threads;
  const size_t stride = static_cast<size_t>(spec_.clients_per_frontend);
  for (size_t c = 0; c < clients_.size(); ++c) {
    threads.emplace_back([&, c] {
      Client& client = *clients_[c];
      for (size_t i = c % stride; i < num_requests; i += stride) {
        by_frontend[static_cast<size_t>(client.frontend)][i] =
            Ask(client, i, absl::StrCat("quiet-", client.frontend, "-", i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  answers_ = by_frontend[0];
  for (size_t i = 0; i < num_requests; ++i) {
    for (const std::vector<Sequence>& answers : by_frontend) {
      const Judgement judgement = Judge(answers_[i], answers[i], false);
      if (judgement.verdict == Verdict::kSame) continue;
      return absl::InternalError(
          absl::StrCat("without any fault, request ", i, ": ", judgement.why));
    }
  }
  return absl::OkStatus();
}

void Load::Start() {
  for (const auto& client : clients_) {
    client->thread = std::thread([this, &client = *client] { Run(client); });
  }
}

void Load::Pause() {
  absl::MutexLock lock(&mutex_);
  paused_ = true;
  const auto idle = [this] {
    mutex_.AssertHeld();
    return running_ == 0;
  };
  mutex_.Await(absl::Condition(&idle));
}

void Load::Resume() {
  absl::MutexLock lock(&mutex_);
  paused_ = false;
}

void Load::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (const auto& client : clients_) {
    if (client->thread.joinable()) client->thread.join();
  }
}

void Load::EndSome(int count, StreamStep how) {
  absl::MutexLock lock(&mutex_);
  to_end_ = count;
  how_to_end_ = how;
}

absl::Duration Load::TakeLongestSilence() {
  absl::MutexLock lock(&mutex_);
  absl::Duration longest = std::exchange(longest_silence_, absl::ZeroDuration());
  for (const auto& client : clients_) {
    longest = std::max(longest, absl::Now() - client->silent_since);
  }
  return longest;
}

Tally Load::tally() const {
  absl::MutexLock lock(&mutex_);
  return tally_;
}

bool Load::AwaitTurn() {
  absl::MutexLock lock(&mutex_);
  const auto settled = [this] {
    mutex_.AssertHeld();
    return stopping_ || !paused_;
  };
  mutex_.Await(absl::Condition(&settled));
  if (stopping_) return false;
  ++running_;
  return true;
}

void Load::Run(Client& client) {
  std::mt19937_64 random(client.seed);
  while (AwaitTurn()) {
    StreamOnce(client, random() % spec_.requests.size());
    absl::MutexLock lock(&mutex_);
    --running_;
  }
}

void Load::StreamOnce(Client& client, size_t request) {
  if (spec_.address(client.frontend).empty()) return absl::SleepFor(kPatience);
  const absl::Time begin = absl::Now();
  const std::string id = absl::StrCat(client.seed, "-", absl::ToUnixMicros(begin));
  bool ended_by_client = false;
  {
    absl::MutexLock lock(&mutex_);
    SetSilentSince(client, begin);
  }
  const Sequence sequence = Ask(client, request, id);
  {
    absl::MutexLock lock(&mutex_);
    SetSilentSince(client, absl::InfiniteFuture());
    ended_by_client = client.ended_id == id;
  }
  const Judgement judgement =
      Judge(answers_[request], sequence, ended_by_client || excuses_.Cover(client.frontend, begin));
  Record(client, request, judgement, sequence.tokens.size());
  if (!sequence.status.ok()) absl::SleepFor(kPatience);
}

Sequence Load::Ask(Client& client, size_t request, const std::string& id) {
  const std::string address = spec_.address(client.frontend);
  if (client.stub == nullptr || client.stub_address != address) {
    client.stub = StreamClient::Create(address);
    client.stub_address = address;
  }
  return client.stub->Generate(spec_.requests[request], id, [&] {
    const StreamStep step = OnToken(client);
    if (step != StreamStep::kReadOn) client.ended_id = id;
    return step;
  });
}

StreamStep Load::OnToken(Client& client) {
  absl::MutexLock lock(&mutex_);
  SetSilentSince(client, absl::Now());
  if (to_end_ == 0) return StreamStep::kReadOn;
  --to_end_;
  return how_to_end_;
}

void Load::SetSilentSince(Client& client, absl::Time since) {
  longest_silence_ = std::max(longest_silence_, absl::Now() - client.silent_since);
  client.silent_since = since;
}

void Load::Record(const Client& client, size_t request, const Judgement& judgement, size_t tokens) {
  absl::MutexLock lock(&mutex_);
  tally_.Count(judgement.verdict, tokens);
  if (judgement.why.empty()) return;
  spec_.on_failure(absl::StrCat(judgement.verdict == Verdict::kLost ? "LOST" : "CHANGED",
                                " request ", request, " at frontend-", client.frontend, ": ",
                                judgement.why));
}

}  // namespace atelier::faults
