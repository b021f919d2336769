#include "services/gpu-frontend/api/generate_call.h"

#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/status_matchers.h"
#include "services/gpu-frontend/api/fake_engine.h"

namespace atelier {
namespace {

namespace wire = ::sglang::grpc::scheduler;
using ::atelier::testing::End;
using ::atelier::testing::FakeEngine;
using ::atelier::testing::IsOk;
using ::atelier::testing::StatusIs;
using ::atelier::testing::Token;
using ::testing::_;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

MappedRequest Mapped(const std::string& id) {
  MappedRequest mapped;
  mapped.request.id = id;
  mapped.request.prompt = {5};
  mapped.stream = true;
  return mapped;
}

// Keeps what is written; a test completes each write when it wants.
class FakeWriter final : public ResponseWriter {
 public:
  void Write(const wire::GenerateResponse* message) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_FALSE(finished_) << "written after Finish";
    EXPECT_FALSE(writing_) << "two writes at once";
    writing_ = true;
    messages_.push_back(*message);
  }
  void Finish(const absl::Status& status) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_FALSE(finished_) << "finished twice";
    EXPECT_FALSE(writing_) << "finished during a write";
    finished_ = true;
    status_ = status;
  }

  // Completes the write under way, if there is one.
  bool Complete(GenerateCall& call, bool ok = true) {
    {
      absl::MutexLock lock(&mutex_);
      if (!writing_) return false;
      writing_ = false;
    }
    call.OnWritten(ok);
    return true;
  }
  bool finished() {
    absl::MutexLock lock(&mutex_);
    return finished_;
  }
  absl::Status status() {
    absl::MutexLock lock(&mutex_);
    return status_;
  }
  std::vector<wire::GenerateResponse> messages() {
    absl::MutexLock lock(&mutex_);
    return messages_;
  }

 private:
  absl::Mutex mutex_;
  std::vector<wire::GenerateResponse> messages_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

class GenerateCallTest : public ::testing::Test {
 protected:
  std::shared_ptr<GenerateCall> StartCall(const std::string& id, FakeWriter& writer) {
    MappedRequest mapped = Mapped(id);
    auto call = std::make_shared<GenerateCall>(mapped, engine_, writer);
    call->Submit(std::move(mapped.request));
    return call;
  }

  FakeEngine engine_;
};

TEST_F(GenerateCallTest, MergesWhatComesDuringAWrite) {
  FakeWriter writer;
  const auto call = StartCall("a", writer);
  for (int i = 0; i < 5; ++i) engine_.Emit("a", Token(0, i, i + 1));
  engine_.Emit("a", End(0, 6));
  engine_.AwaitDelivered();
  EXPECT_EQ(writer.messages().size(), 1u);
  while (writer.Complete(*call)) continue;
  const auto messages = writer.messages();
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_THAT(messages[1].chunk().token_ids(), ElementsAre(1, 2, 3, 4));
  EXPECT_TRUE(messages[2].has_complete());
  EXPECT_TRUE(writer.finished());
  EXPECT_THAT(writer.status(), IsOk());
}

TEST_F(GenerateCallTest, AnErrorWaitsForTheWriteAndSkipsTheBacklog) {
  FakeWriter writer;
  const auto call = StartCall("a", writer);
  engine_.Emit("a", Token(0, 1, 1));
  engine_.Emit("a", Token(0, 2, 2));
  engine_.EndWith("a", absl::UnavailableError("worker gone"));
  engine_.AwaitDelivered();
  EXPECT_FALSE(writer.finished());
  EXPECT_TRUE(writer.Complete(*call));
  EXPECT_EQ(writer.messages().size(), 1u);
  EXPECT_THAT(writer.status(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("worker gone")));
}

TEST_F(GenerateCallTest, ARefusedRequestEndsWithItsStatusAlone) {
  FakeWriter first_writer;
  const auto first = StartCall("a", first_writer);
  FakeWriter writer;
  const auto second = StartCall("a", writer);
  EXPECT_THAT(writer.status(), StatusIs(absl::StatusCode::kAlreadyExists, _));
  second->OnCancelled();
  EXPECT_EQ(engine_.aborts("a"), 0);
  EXPECT_FALSE(first_writer.finished());
}

TEST_F(GenerateCallTest, ACancelBeforeTheRequestIsSubmittedStillAbortsIt) {
  FakeWriter writer;
  MappedRequest mapped = Mapped("a");
  const auto call = std::make_shared<GenerateCall>(mapped, engine_, writer);
  call->OnCancelled();
  EXPECT_TRUE(writer.finished());
  call->Submit(std::move(mapped.request));
  EXPECT_EQ(engine_.aborts("a"), 1);
}

TEST_F(GenerateCallTest, ACancelAfterTheEndAbortsNothing) {
  FakeWriter writer;
  const auto call = StartCall("a", writer);
  engine_.Emit("a", End(0, 1));
  engine_.AwaitDelivered();
  call->OnCancelled();
  EXPECT_EQ(engine_.aborts("a"), 0);
}

TEST_F(GenerateCallTest, AFailedWriteEndsTheCall) {
  FakeWriter writer;
  const auto call = StartCall("a", writer);
  engine_.Emit("a", Token(0, 1, 1));
  engine_.AwaitDelivered();
  EXPECT_TRUE(writer.Complete(*call, /*ok=*/false));
  EXPECT_THAT(writer.status(), StatusIs(absl::StatusCode::kCancelled, _));
  call->OnCancelled();
  EXPECT_EQ(engine_.aborts("a"), 1);
}

// The engine delivers, the transport completes writes and the caller cancels, all at once: exactly
// one Finish, and nothing is left in the engine. (FakeWriter checks the order.)
TEST_F(GenerateCallTest, EventsFromThreeSidesAtOnce) {
  std::minstd_rand random(1);
  for (int i = 0; i < 300; ++i) {
    const std::string id = std::to_string(i);
    FakeWriter writer;
    MappedRequest mapped = Mapped(id);
    const auto call = std::make_shared<GenerateCall>(mapped, engine_, writer);
    const bool cancels = random() % 2 == 0;
    std::thread transport([&] {
      while (!writer.finished()) {
        if (!writer.Complete(*call)) std::this_thread::yield();
      }
    });
    std::thread caller([&] {
      if (cancels) call->OnCancelled();
    });
    call->Submit(std::move(mapped.request));
    for (int k = 0; k < 20; ++k) engine_.Emit(id, Token(0, k, k + 1));
    engine_.Emit(id, End(0, 21));
    caller.join();
    transport.join();
    engine_.AwaitDelivered();
    engine_.Forget(id);
    EXPECT_TRUE(writer.finished());
    if (!cancels) {
      EXPECT_THAT(writer.status(), IsOk());
    }
  }
}

}  // namespace
}  // namespace atelier
