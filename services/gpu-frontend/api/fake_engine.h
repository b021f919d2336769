#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "services/gpu-frontend/engine/engine.h"

// For the tests of this folder.
namespace atelier::testing {

// Long enough for any machine: only a failing test waits that long.
inline constexpr absl::Duration kPatience = absl::Seconds(60);

// An Engine whose tokens come from the test, on one thread of its own as the real one's do.
class FakeEngine final : public Engine {
 public:
  FakeEngine() : thread_([this] { Run(); }) {}
  ~FakeEngine() override {
    Post([this] { stopped_ = true; });
    thread_.join();
  }

  absl::Status Submit(GenerateRequest request, std::shared_ptr<RequestSink> sink) override {
    absl::MutexLock lock(&mutex_);
    if (draining_) return absl::UnavailableError("draining");
    if (sinks_.contains(request.id)) {
      return absl::AlreadyExistsError(absl::StrCat("request_id=", request.id, " is in flight"));
    }
    sinks_[request.id] = {std::move(sink), request.sampling.n};
    return absl::OkStatus();
  }
  bool Abort(const std::string& id) override {
    absl::MutexLock lock(&mutex_);
    ++aborts_[id];
    const auto found = sinks_.find(id);
    if (found == sinks_.end()) return false;
    const Entry entry = found->second;
    sinks_.erase(found);
    for (int i = 0; i < entry.n; ++i) {
      queue_.push_back([entry, i] {
        TokenDelta delta;
        delta.index = i;
        delta.finish = FinishReason::kAbort;
        entry.sink->OnDelta(std::move(delta));
      });
    }
    return true;
  }
  void Drain() override {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
  }
  bool Idle() const override { return true; }
  bool FlushCache() override {
    absl::MutexLock lock(&mutex_);
    return sinks_.empty();
  }
  EngineLoad Load() const override {
    EngineLoad load;
    load.total_tokens = 1024;
    load.max_running = 8;
    return load;
  }

  // Delivers a token of sequence `index` of a request that is in flight.
  void Emit(const std::string& id, TokenDelta delta) {
    const std::shared_ptr<RequestSink> sink = SinkOf(id);
    if (sink == nullptr) return;
    Post([sink, delta = std::move(delta)] { sink->OnDelta(delta); });
  }
  void EndWith(const std::string& id, absl::Status status) {
    const std::shared_ptr<RequestSink> sink = SinkOf(id);
    Forget(id);
    Post([sink, status = std::move(status)] { sink->OnError(status); });
  }
  void Forget(const std::string& id) {
    absl::MutexLock lock(&mutex_);
    sinks_.erase(id);
  }
  // Blocks until everything emitted so far has been taken by its sink.
  void AwaitDelivered() {
    absl::Notification delivered;
    Post([&delivered] { delivered.Notify(); });
    ASSERT_TRUE(delivered.WaitForNotificationWithTimeout(kPatience)) << "a sink blocks the engine";
  }
  void AwaitSubmitted(const std::string& id) {
    Await([this, id] { return sinks_.contains(id); });
  }
  void AwaitAbort(const std::string& id) {
    Await([this, id] { return aborts_[id] > 0; });
  }
  int aborts(const std::string& id) {
    absl::MutexLock lock(&mutex_);
    return aborts_[id];
  }

 private:
  struct Entry {
    std::shared_ptr<RequestSink> sink;
    int n = 1;
  };

  std::shared_ptr<RequestSink> SinkOf(const std::string& id) {
    absl::MutexLock lock(&mutex_);
    const auto found = sinks_.find(id);
    return found == sinks_.end() ? nullptr : found->second.sink;
  }
  void Await(std::function<bool()> condition) {
    absl::MutexLock lock(&mutex_);
    ASSERT_TRUE(
        mutex_.AwaitWithTimeout(absl::Condition(
                                    +[](std::function<bool()>* f) { return (*f)(); }, &condition),
                                kPatience));
  }
  void Post(std::function<void()> event) {
    absl::MutexLock lock(&mutex_);
    queue_.push_back(std::move(event));
  }
  void Run() {
    while (!stopped_) {
      std::function<void()> event;
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(
            +[](std::deque<std::function<void()>>* queue) { return !queue->empty(); }, &queue_));
        event = std::move(queue_.front());
        queue_.pop_front();
      }
      event();
    }
  }

  absl::Mutex mutex_;
  std::map<std::string, Entry> sinks_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int> aborts_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ = false;  // the thread's own
  std::thread thread_;
};

inline TokenDelta Token(int index, int32_t token, int completion_tokens) {
  TokenDelta delta;
  delta.index = index;
  delta.tokens = {token};
  delta.prompt_tokens = 2;
  delta.completion_tokens = completion_tokens;
  return delta;
}

inline TokenDelta End(int index, int completion_tokens) {
  TokenDelta delta;
  delta.index = index;
  delta.completion_tokens = completion_tokens;
  delta.finish = FinishReason::kStop;
  delta.matched_token = 2;
  return delta;
}

}  // namespace atelier::testing
