#pragma once

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "libs/base/status_macros.h"
#include "libs/testing/file_server.h"
#include "libs/testing/read_file.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/synthetic_checkpoint.h"
#include "libs/testing/temp_dir.h"
#include "services/expert-worker/choose_method.h"
#include "services/expert-worker/expert_packing.h"
#include "tools/atelier/fetch/checkpoint_fetcher.h"
#include "tools/atelier/fetch/curl_http_client.h"

namespace atelier::testing {

inline std::string TextOf(absl::Span<const uint8_t> bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// The tiny GLM model (layers 1-3 with 16 experts of 192 columns) in three files behind a server.
class FetcherFixture : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    curl_ = std::make_unique<CurlLibrary>();
    published_ = std::make_unique<TempDir>();
    Publish(published_->path(), 5);
  }
  static void TearDownTestSuite() {
    published_.reset();
    curl_.reset();
  }
  static void Publish(const std::string& folder, uint64_t seed) {
    WriteSyntheticCheckpoint(folder,
                             {.config_json = TinyGlm4MoeConfig(), .seed = seed, .num_files = 3});
  }

  FetcherOptions Options() {
    FetcherOptions options;
    options.source = ParseRemoteSource(server_.url() + path_, kDefaultHub).value();
    options.directory = dir_.path();
    options.jobs = 3;
    options.max_gap = 0;
    options.request_bytes = 200'000;
    options.commit_bytes = 80'000;
    options.reader.retries = {.max_attempts = 3, .first_wait = absl::Milliseconds(1)};
    CurlOptions curl;
    curl.stall_timeout = absl::Seconds(1);
    options.connect = [curl] { return CreateCurlHttpClient(curl); };
    return options;
  }
  absl::Status Fetch(const ShardSpec* shard) { return Fetch(shard, Options()); }
  // What a frontend reads, or a worker.
  absl::Status Fetch(const ShardSpec* shard, FetcherOptions options) {
    CheckpointFetcher fetcher(std::move(options));
    const absl::Status headers = fetcher.FetchHeaders();
    notes_ = fetcher.notes();
    ATELIER_RETURN_IF_ERROR(headers);
    ATELIER_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(fetcher.checkpoint_path()));
    FileBytes wanted;
    if (shard == nullptr) {
      ATELIER_ASSIGN_OR_RETURN(wanted, BytesOfFrontend(*checkpoint));
    } else {
      ATELIER_ASSIGN_OR_RETURN(wanted, BytesOfWorker(*checkpoint, *shard, {}));
    }
    ATELIER_ASSIGN_OR_RETURN(missing_, fetcher.Missing(wanted));
    return fetcher.FetchBytes(wanted);
  }
  static std::unique_ptr<Checkpoint> Open(const std::string& path) {
    auto checkpoint = Checkpoint::Open(path);
    EXPECT_THAT(checkpoint, IsOk());
    return checkpoint.ok() ? *std::move(checkpoint) : nullptr;
  }
  // Whether the folder, as it is, would let a reader take zeros for weights: everything that may be
  // read has to be what `published` has.
  static void ExpectNothingFalse(const std::string& folder, const std::string& published) {
    const auto partial = Checkpoint::Open(folder);
    if (!partial.ok()) return;
    const auto whole = Open(published);
    for (const std::string& name : whole->TensorNames()) {
      const TensorView there = (*partial)->Find(name).value();
      if (!(*partial)->IsFetched(there.data)) continue;
      EXPECT_TRUE(TextOf(there.data) == TextOf(whole->Find(name)->data)) << name;
    }
  }
  // Files of published bytes, but for the sizes of holes.
  void ExpectFrontendReads(const std::string& published) {
    const auto partial = Open(dir_.path()), whole = Open(published);
    ASSERT_NE(partial, nullptr);
    EXPECT_EQ(partial->digest(), whole->digest());
    ATELIER_EXPECT_OK(RequireFrontendFetched(*partial));
    ExpectNothingFalse(dir_.path(), published);
  }

  static inline std::unique_ptr<CurlLibrary> curl_;
  static inline std::unique_ptr<TempDir> published_;
  FileServer server_{published_->path()};
  std::string path_;  // of the source at the server
  TempDir dir_;
  std::vector<std::string> notes_;
  FetchTotals missing_;
};

// The pieces of all experts that a shard is packed from.
inline std::vector<PackedPiece> PiecesOf(const Checkpoint& checkpoint, const ShardSpec& shard) {
  const LayerMethods methods = ChooseMethods(checkpoint, std::nullopt).value();
  const ShardPlan plan = PlanShards(checkpoint.config(), {shard}, methods).value()[0];
  std::vector<PackedPiece> pieces;
  for (size_t i = 0; i < plan.spec.layers.size(); ++i) {
    for (int expert = shard.expert_begin; expert < shard.expert_end; ++expert) {
      const auto tensors = FindExpert(checkpoint, plan.spec.layers[i], expert).value();
      const int hidden = plan.hidden_size;
      pieces.push_back(
          GateOrUpPiece(tensors.gate, plan.methods[i].gate, plan.columns, hidden, nullptr));
      pieces.push_back(
          GateOrUpPiece(tensors.up, plan.methods[i].up, plan.columns, hidden, nullptr));
      pieces.push_back(
          DownPiece(tensors.down, plan.methods[i].down, plan.columns, hidden, nullptr));
    }
  }
  return pieces;
}

}  // namespace atelier::testing
