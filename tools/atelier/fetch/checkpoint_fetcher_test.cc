#include "tools/atelier/fetch/checkpoint_fetcher.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/fetcher_fixture.h"
#include "libs/testing/file_server.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/synthetic_gguf.h"
#include "libs/testing/temp_dir.h"

namespace atelier {
namespace {

using ::atelier::testing::FetcherFixture;
using ::atelier::testing::FileServer;
using ::atelier::testing::IsOk;
using ::atelier::testing::PiecesOf;
using ::atelier::testing::ReadFile;
using ::atelier::testing::StatusIs;
using ::atelier::testing::TempDir;
using ::atelier::testing::TextOf;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::Not;
using ::testing::SizeIs;

class CheckpointFetcherTest : public FetcherFixture {};

void MoveFiles(const std::string& from, const std::string& to) {
  for (const auto& entry : std::filesystem::directory_iterator(from)) {
    std::filesystem::rename(entry.path(), std::filesystem::path(to) / entry.path().filename());
  }
}

TEST_F(CheckpointFetcherTest, AFrontendGetsAllButTheExperts) {
  ATELIER_ASSERT_OK(Fetch(nullptr));
  ExpectFrontendReads(published_->path());
  const auto partial = Open(dir_.path());
  EXPECT_FALSE(partial->IsWhole());
  const TensorView expert = partial->Find("model.layers.2.mlp.experts.3.up_proj.weight").value();
  EXPECT_THAT(
      partial->RequireFetched(expert.data, "--role=worker --shard-slice=0/1"),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(HasSubstr("\"model.layers.2.mlp.experts.3.up_proj.weight\""),
                     HasSubstr(absl::StrCat("run: atelier fetch ", server_.url(), " --dir=",
                                            dir_.path(), " --role=worker --shard-slice=0/1")))));
  uint64_t on_disk = 0, size = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
    if (entry.path().extension() != ".safetensors") continue;
    struct stat info = {};
    ASSERT_EQ(::stat(entry.path().c_str(), &info), 0);
    on_disk += static_cast<uint64_t>(info.st_blocks) * 512;
    size += static_cast<uint64_t>(info.st_size);
  }
  EXPECT_LT(on_disk, size / 2);
}

TEST_F(CheckpointFetcherTest, AWorkerGetsItsSliceAndNothingElse) {
  const ShardSpec shard{{}, 0, 16, 1, 3}, other{{}, 0, 16, 0, 3};
  ATELIER_ASSERT_OK(Fetch(&shard));
  const auto partial = Open(dir_.path()), whole = Open(published_->path());
  EXPECT_EQ(partial->digest(), whole->digest());
  const std::vector<PackedPiece> mine = PiecesOf(*partial, shard),
                                 published = PiecesOf(*whole, shard);
  ATELIER_ASSERT_OK(RequireFetched(*partial, mine, ""));
  for (size_t i = 0; i < mine.size(); ++i) {
    const auto a = BytesOf(mine[i]), b = BytesOf(published[i]);
    ASSERT_EQ(a.size(), b.size());
    for (size_t j = 0; j < a.size(); ++j) ASSERT_TRUE(TextOf(a[j]) == TextOf(b[j]));
  }
  EXPECT_THAT(RequireFetched(*partial, PiecesOf(*partial, other), "--role=worker"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("gate_proj")));
  EXPECT_THAT(RequireFrontendFetched(*partial),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--role=frontend")));
  // A third of gate and up, and down; experts are most of the model.
  const uint64_t experts = 3 * 16 * 3 * 192 * 256 * 2;
  EXPECT_GT(missing_.wanted, experts * 5 / 9);
  EXPECT_LT(missing_.wanted, experts * 5 / 9 + 3 * 20'000);
}

TEST_F(CheckpointFetcherTest, RolesAddUpToThePublishedFiles) {
  const ShardSpec all{{}, 0, 16, 0, 1};
  ATELIER_ASSERT_OK(Fetch(nullptr));
  server_.Forget();
  ATELIER_ASSERT_OK(Fetch(&all));
  EXPECT_EQ(missing_.missing + 3, server_.body_bytes());  // and a byte a file, to compare etags
  const auto partial = Open(dir_.path()), whole = Open(published_->path());
  for (const std::string& name : whole->TensorNames()) {
    const TensorView tensor = partial->Find(name).value();
    EXPECT_TRUE(partial->IsFetched(tensor.data)) << name;
    EXPECT_TRUE(TextOf(tensor.data) == TextOf(whole->Find(name)->data)) << name;
  }
}

TEST_F(CheckpointFetcherTest, ConnectionsThatBreakAreContinued) {
  server_.Behave([](const FileServer::Request& request) {
    FileServer::Answer answer;
    if (request.range) answer.drop_after = 7'000;
    return answer;
  });
  ATELIER_ASSERT_OK(Fetch(nullptr));
  ExpectFrontendReads(published_->path());
  // No byte came twice.
  uint64_t small = 0;
  for (const auto& entry : std::filesystem::directory_iterator(published_->path())) {
    if (entry.path().extension() == ".json") small += entry.file_size();
  }
  EXPECT_LE(server_.body_bytes(), missing_.wanted + small + 3 * (128 << 10));
}

TEST_F(CheckpointFetcherTest, AnInterruptedFetchGoesOnWithWhatIsMissing) {
  std::atomic<int> answers = 0;
  server_.Behave([&answers](const FileServer::Request& request) {
    FileServer::Answer answer;
    if (request.range && ++answers > 10) answer.drop_after = 0;
    return answer;
  });
  EXPECT_THAT(Fetch(nullptr),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("after 3 attempts")));
  ExpectNothingFalse(dir_.path(), published_->path());
  const uint64_t before = missing_.missing;
  ASSERT_GT(before, 0u);
  server_.Behave(nullptr);
  server_.Forget();
  ATELIER_ASSERT_OK(Fetch(nullptr));
  EXPECT_LT(missing_.missing, before);
  EXPECT_EQ(server_.body_bytes(), missing_.missing + 3);
  ExpectFrontendReads(published_->path());
  server_.Forget();
  ATELIER_ASSERT_OK(Fetch(nullptr));
  EXPECT_EQ(server_.body_bytes(), 3u);
}

TEST_F(CheckpointFetcherTest, WithoutRangesWholeFilesAreFetched) {
  server_.Behave([](const FileServer::Request&) { return FileServer::Answer{.ranges = false}; });
  FetcherOptions options = Options();
  options.headers_only = true;
  EXPECT_THAT(Fetch(nullptr, std::move(options)),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("whole files only")));
  ATELIER_ASSERT_OK(Fetch(nullptr));
  EXPECT_THAT(notes_, SizeIs(3));
  EXPECT_THAT(notes_, Each(HasSubstr("was fetched whole")));
  for (const auto& entry : std::filesystem::directory_iterator(published_->path())) {
    EXPECT_TRUE(ReadFile(entry.path()) == ReadFile(dir_.File(entry.path().filename())));
  }
}

TEST_F(CheckpointFetcherTest, WholeFilesThatBreakOffAreNotKept) {
  server_.Behave([](const FileServer::Request& request) {
    FileServer::Answer answer{.ranges = false};
    if (absl::EndsWith(request.path, ".safetensors")) answer.drop_after = 50'000;
    return answer;
  });
  EXPECT_THAT(Fetch(nullptr),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("after 3 attempts")));
  EXPECT_THAT(Checkpoint::Open(dir_.path()), Not(IsOk()));
}

TEST_F(CheckpointFetcherTest, AFileThatChangesMidwayIsNoticedAndFetchedAnew) {
  TempDir changing, next;
  Publish(changing.path(), 5);
  Publish(next.path(), 6);
  FileServer server(changing.path());
  FetcherOptions options = Options();
  options.source = ParseRemoteSource(server.url(), kDefaultHub).value();
  const auto change_at = [&](int request_number) {
    server.Behave([&, request_number](const FileServer::Request& request) {
      // Moved at once: what is written slowly is longer on its way than a reader waits.
      if (request.number == request_number) MoveFiles(next.path(), changing.path());
      return FileServer::Answer{};
    });
  };
  change_at(30);
  EXPECT_THAT(Fetch(nullptr, options),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("changed on the server")));
  server.Behave(nullptr);
  ATELIER_ASSERT_OK(Fetch(nullptr, options));
  EXPECT_THAT(notes_, Each(HasSubstr("another one on the server now")));
  EXPECT_THAT(notes_, Not(IsEmpty()));
  ExpectFrontendReads(changing.path());
}

struct Lie {
  const char* name;
  FileServer::Answer answer;
  absl::StatusCode code;
  const char* message;
};

class CheckpointFetcherLies : public CheckpointFetcherTest,
                              public ::testing::WithParamInterface<Lie> {};

// Told from the beginning, or once the headers are there: nothing of it may pass for weights.
TEST_P(CheckpointFetcherLies, AreNoticed) {
  for (const int from : {1, 30}) {
    const TempDir dir;
    server_.Forget();
    server_.Behave([from](const FileServer::Request& request) {
      const bool lies = request.number >= from && absl::EndsWith(request.path, ".safetensors");
      return lies ? GetParam().answer : FileServer::Answer{};
    });
    FetcherOptions options = Options();
    options.directory = dir.path();
    EXPECT_THAT(Fetch(nullptr, std::move(options)),
                StatusIs(GetParam().code, HasSubstr(GetParam().message)))
        << from;
    ExpectNothingFalse(dir.path(), published_->path());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, CheckpointFetcherLies,
    ::testing::Values(
        Lie{"TooLongALength", {.length_lie = 100}, absl::StatusCode::kDataLoss, "announces"},
        Lie{"TooShortALength", {.length_lie = -100}, absl::StatusCode::kDataLoss, "announces"},
        Lie{"AnotherPart", {.begin_lie = 10}, absl::StatusCode::kDataLoss, "was asked for"},
        Lie{"Compressed",
            {.headers = {{"Content-Encoding", "gzip"}}},
            absl::StatusCode::kDataLoss,
            "compresses"},
        Lie{"NoSuchStatus", {.status = 299}, absl::StatusCode::kFailedPrecondition, "299"},
        Lie{"Failing", {.status = 503}, absl::StatusCode::kUnavailable, "503"}),
    [](const auto& info) { return info.param.name; });

TEST_F(CheckpointFetcherTest, AFalseTotalIsAFileThatDoesNotFitItsHeader) {
  server_.Behave([](const FileServer::Request&) { return FileServer::Answer{.total_lie = 4096}; });
  EXPECT_THAT(Fetch(nullptr), Not(IsOk()));
  EXPECT_THAT(Checkpoint::Open(dir_.path()), Not(IsOk()));
}

TEST_F(CheckpointFetcherTest, WaitsAsLongAsABusyServerAsks) {
  absl::Mutex mutex;
  std::vector<absl::Duration> waits;
  FetcherOptions options = Options();
  options.reader.retries.max_attempts = 100;
  options.reader.sleep = [&](absl::Duration duration) {
    const absl::MutexLock lock(&mutex);
    waits.push_back(duration);
  };
  server_.Behave([](const FileServer::Request& request) {
    FileServer::Answer answer;
    if (request.number % 2 == 1) answer = {.status = 429, .headers = {{"Retry-After", "7"}}};
    return answer;
  });
  ATELIER_ASSERT_OK(Fetch(nullptr, std::move(options)));
  EXPECT_THAT(waits, Each(Ge(absl::Seconds(7))));
  EXPECT_THAT(waits, Not(IsEmpty()));
}

TEST_F(CheckpointFetcherTest, ATokenGoesToTheHubAloneAndRedirectsAreRemembered) {
  FileServer hub(dir_.path());
  hub.Behave([this](const FileServer::Request& request) {
    const std::string file = request.path.substr(request.path.rfind('/') + 1);
    const std::string to = absl::StrCat("http://localhost:", server_.port(), "/", file);
    return FileServer::Answer{
        .status = 302,
        .headers = {
            {"Location", to}, {"X-Linked-ETag", "\"content\""}, {"X-Repo-Commit", "0123abcd"}}};
  });
  FetcherOptions options = Options();
  const TempDir dir;
  options.directory = dir.path();
  options.source = ParseRemoteSource("hf://org/name", hub.url()).value();
  options.reader.credentials = {"secret", options.source.folder.origin()};
  ATELIER_ASSERT_OK(Fetch(nullptr, std::move(options)));
  EXPECT_EQ(Open(dir.path())->digest(), Open(published_->path())->digest());
  for (const FileServer::Request& request : server_.requests()) {
    EXPECT_FALSE(request.headers.contains("authorization")) << request.path;
  }
  const std::vector<FileServer::Request> asked = hub.requests();
  for (const FileServer::Request& request : asked) {
    EXPECT_EQ(request.headers.at("authorization"), "Bearer secret");
  }
  EXPECT_EQ(asked[0].path, "/org/name/resolve/main/config.json");
  EXPECT_EQ(asked[1].path, "/org/name/resolve/0123abcd/generation_config.json");
  // Once a small file, once each of the three large ones, and some that several threads ask.
  EXPECT_LE(asked.size(), 10u);
  EXPECT_GT(server_.requests().size(), 30u);
}

TEST_F(CheckpointFetcherTest, AnExpiredRedirectIsAskedForAgain) {
  FileServer hub(dir_.path());
  hub.Behave([this](const FileServer::Request& request) {
    const std::string to =
        absl::StrCat("http://127.0.0.1:", server_.port(),
                     request.path.substr(request.path.rfind('/')), "?signed=", request.number);
    return FileServer::Answer{.status = 302,
                              .headers = {{"Location", to}, {"X-Linked-ETag", "\"content\""}}};
  });
  TempDir folder;  // where names have no query
  std::atomic<int> answers = 0;
  server_.Behave([&](const FileServer::Request& request) {
    FileServer::Answer answer;
    if (request.range && ++answers % 9 == 0) answer.status = 403;
    return answer;
  });
  FetcherOptions options = Options();
  options.directory = folder.path();
  options.jobs = 1;
  options.source = ParseRemoteSource("hf://org/name", hub.url()).value();
  ATELIER_ASSERT_OK(Fetch(nullptr, std::move(options)));
  EXPECT_EQ(Open(folder.path())->digest(), Open(published_->path())->digest());
}

TEST_F(CheckpointFetcherTest, RefusalsSayWhatToDo) {
  const auto answer_all = [this](int status) {
    server_.Behave(
        [status](const FileServer::Request&) { return FileServer::Answer{.status = status}; });
  };
  answer_all(401);
  EXPECT_THAT(Fetch(nullptr), StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("HF_TOKEN")));
  answer_all(403);
  EXPECT_THAT(Fetch(nullptr),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("gated model")));
  answer_all(404);
  EXPECT_THAT(Fetch(nullptr), StatusIs(absl::StatusCode::kNotFound, HasSubstr("config.json")));
  answer_all(500);
  EXPECT_THAT(Fetch(nullptr), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("500")));
}

TEST_F(CheckpointFetcherTest, ASlowServerIsWaitedForAndASilentOneIsNot) {
  server_.Behave([](const FileServer::Request& request) {
    FileServer::Answer answer;
    if (request.range) answer.pause = absl::Microseconds(200);
    if (request.number == 12) answer.pause = absl::Seconds(4);
    return answer;
  });
  ATELIER_ASSERT_OK(Fetch(nullptr));
  ExpectFrontendReads(published_->path());
}

TEST_F(CheckpointFetcherTest, FilesOfOthersAreLeftAlone) {
  std::ofstream(dir_.File("config.json")) << "{}";
  EXPECT_THAT(Fetch(nullptr), StatusIs(absl::StatusCode::kFailedPrecondition,
                                       HasSubstr("was not made by atelier fetch")));
  EXPECT_EQ(ReadFile(dir_.File("config.json")), "{}");
  std::filesystem::remove(dir_.File("config.json"));
  const std::string part = dir_.File("model-00002-of-00003.safetensors");
  std::ofstream(part) << "mine";
  EXPECT_THAT(Fetch(nullptr), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(part)));
  EXPECT_EQ(ReadFile(part), "mine");
  // A whole file is as good as a fetched one.
  std::filesystem::copy_file(published_->File("model-00002-of-00003.safetensors"), part,
                             std::filesystem::copy_options::overwrite_existing);
  ATELIER_ASSERT_OK(Fetch(nullptr));
  ExpectFrontendReads(published_->path());
}

// A GGUF file whose header is longer than what is asked for at first.
TEST_F(CheckpointFetcherTest, GgufHeadersAreFetchedAsLongAsTheyAre) {
  const auto checkpoint = Open(published_->path());
  testing::GgufWriter writer = testing::GgufOf(*checkpoint, [](absl::string_view name) {
    return absl::StrContains(name, "_exps") ? "Q8_0" : "BF16";
  });
  writer.Add("test.padding", std::string(3 << 20, 'x'));
  TempDir folder;
  writer.WriteSplit(folder.File("m"), 2);
  FileServer server(folder.path());
  for (const bool frontend : {true, false}) {
    const TempDir dir;
    const ShardSpec shard{{}, 4, 8, 0, 3};
    FetcherOptions options = Options();
    options.directory = dir.path();
    options.source = ParseRemoteSource(server.url() + "m-00001-of-00002.gguf", kDefaultHub).value();
    ATELIER_ASSERT_OK(Fetch(frontend ? nullptr : &shard, std::move(options)));
    const std::string name = "m-00001-of-00002.gguf";
    EXPECT_EQ(Open(dir.File(name))->digest(), Open(folder.File(name))->digest());
    EXPECT_LT(missing_.missing, uint64_t{4} << 20);
    const auto partial = Open(dir.File(name)), whole = Open(folder.File(name));
    if (frontend) {
      ATELIER_EXPECT_OK(RequireFrontendFetched(*partial));
      continue;
    }
    const std::vector<PackedPiece> pieces = PiecesOf(*partial, shard);
    ATELIER_ASSERT_OK(RequireFetched(*partial, pieces, ""));
    const std::vector<PackedPiece> published = PiecesOf(*whole, shard);
    for (size_t i = 0; i < pieces.size(); ++i) {
      EXPECT_TRUE(TextOf(BytesOf(pieces[i])[0]) == TextOf(BytesOf(published[i])[0]));
    }
    EXPECT_THAT(partial->RequireFetched(partial->Find("model.layers.3.mlp.experts.down_proj")->data,
                                        "--role=x"),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr(absl::StrCat("--dir=", dir.path()))));
  }
}

}  // namespace
}  // namespace atelier
