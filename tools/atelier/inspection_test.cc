#include "tools/atelier/inspection.h"

#include <signal.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/base/clock.h"
#include "libs/base/log.h"
#include "libs/numa/node_arena.h"
#include "libs/testing/child_process.h"
#include "libs/testing/file_server.h"
#include "libs/testing/published_forms.h"
#include "libs/testing/run_program.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/synthetic_checkpoint.h"
#include "libs/testing/temp_dir.h"
#include "nlohmann/json.hpp"
#include "services/expert-worker/choose_method.h"
#include "services/expert-worker/expert_store.h"

namespace atelier {
namespace {

using ::atelier::testing::Outcome;
using ::atelier::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kExpertElements = 3 * 256 * 256;  // of the tiny Qwen model: H256 I256

class InspectionTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = std::make_unique<testing::TempDir>();
    testing::WriteSyntheticCheckpoint(model_->path(),
                                      {.config_json = testing::TinyQwen3MoeConfig(), .seed = 3});
  }
  static void TearDownTestSuite() { model_.reset(); }

  static std::unique_ptr<Checkpoint> Open() {
    auto checkpoint = Checkpoint::Open(model_->path());
    EXPECT_THAT(checkpoint, testing::IsOk());
    return *std::move(checkpoint);
  }

  static inline std::unique_ptr<testing::TempDir> model_;
};

TEST_F(InspectionTest, CountsWhatTheFilesHold) {
  const auto checkpoint = Open();
  ATELIER_ASSERT_OK_AND_ASSIGN(const Inspection inspection, Inspect(*checkpoint, {}));
  int64_t bytes = 0;  // all BF16
  for (const std::string& name : checkpoint->TensorNames()) {
    bytes += static_cast<int64_t>(checkpoint->Find(name)->data.size());
  }
  EXPECT_EQ(inspection.parameters * 2, bytes);
  EXPECT_EQ(inspection.active_parameters, inspection.parameters - 4 * 6 * kExpertElements);
  EXPECT_EQ(inspection.worker.bytes, 4 * 8 * kExpertElements * 2);
  EXPECT_EQ(inspection.frontend.bytes, bytes - inspection.worker.bytes);
  EXPECT_EQ(inspection.layers[3].expert_bytes, 8 * kExpertElements * 2);
  int64_t in_classes = 0;
  for (const TensorClass& c : inspection.classes) {
    EXPECT_NE(c.name, "other");
    in_classes += c.bytes;
  }
  EXPECT_EQ(in_classes, bytes);
  EXPECT_EQ(inspection.classes[0].name, "routed experts");
  EXPECT_EQ(inspection.frontend_memory.kv_bytes_per_token, 2 * 4 * 2 * 64 * 2);
}

TEST_F(InspectionTest, NamesWhatTheFrontendWidens) {
  const testing::TempDir quantised;
  testing::WriteSyntheticCheckpoint(
      quantised.path(),
      {.config_json = testing::TinyQwen3MoeConfig(
           R"({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 64}})")});
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto floats, Checkpoint::Open(quantised.path()));
  ATELIER_ASSERT_OK_AND_ASSIGN(const Inspection before, Inspect(*floats, {}));
  testing::Tensors tensors;
  for (const std::string& name : floats->TensorNames()) {
    const TensorView view = floats->Find(name).value();
    tensors[name] = {view.dtype, view.shape, std::string(view.data.begin(), view.data.end())};
  }
  for (int layer = 0; layer < 4; ++layer) {
    const std::string name = absl::StrCat("model.layers.", layer, ".self_attn.k_proj");
    tensors.erase(name + ".weight");
    testing::AddAwq(name, testing::Make(128, 256, 64, 1), tensors);
  }
  testing::WriteSafetensors(quantised.File("model.safetensors"), tensors);
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto checkpoint, Checkpoint::Open(quantised.path()));
  ATELIER_ASSERT_OK_AND_ASSIGN(const Inspection after, Inspect(*checkpoint, {}));
  ATELIER_EXPECT_OK(after.frontend.supported);
  EXPECT_TRUE(before.widened.empty());
  EXPECT_EQ(after.widened, (std::map<std::string, int64_t>{{"INT4_G64_ZP", 4}}));
  // As many bytes in memory, fewer in the file.
  EXPECT_EQ(after.frontend_memory.weights, before.frontend_memory.weights);
  EXPECT_LT(after.frontend.bytes, before.frontend.bytes);
  EXPECT_THAT(InspectionText(after), HasSubstr("4 matrices of INT4_G64_ZP, to bf16"));
}

TEST_F(InspectionTest, PlansTheBytesThatAWorkerThenHolds) {
  const auto checkpoint = Open();
  for (const Method method : {Method::kBF16, Method::kINT8, Method::kINT4G32}) {
    ATELIER_ASSERT_OK_AND_ASSIGN(const Inspection inspection,
                                 Inspect(*checkpoint, {.workers = 3, .method = method}));
    ASSERT_EQ(inspection.workers.size(), 3u);
    const Logger quiet(Severity::kError);
    SystemClock clock;
    ATELIER_ASSERT_OK_AND_ASSIGN(const auto arena,
                                 NodeArena::Create({}, Topology::Detect(), quiet));
    ExpertStoreOptions options;
    ATELIER_ASSERT_OK_AND_ASSIGN(options.methods, ChooseMethods(*checkpoint, method));
    options.shards = {{{}, 0, 8, 1, 3}};
    ATELIER_ASSERT_OK_AND_ASSIGN(const auto store,
                                 ExpertStore::Load(*checkpoint, options, *arena, clock, quiet));
    EXPECT_EQ(inspection.workers[1].weights, store->bytes()) << MethodName(method);
  }
}

TEST_F(InspectionTest, PlansTheKvCacheBesideWhatElseTheFrontendTakes) {
  const auto checkpoint = Open();
  ATELIER_ASSERT_OK_AND_ASSIGN(const Inspection unplanned, Inspect(*checkpoint, {}));
  const FrontendMemory& usual = unplanned.frontend_memory;
  EXPECT_EQ(usual.kv_cache, int64_t{1} << 30);
  EXPECT_EQ(usual.Most(), usual.weights + usual.process + usual.workspace + usual.kv_cache);
  const int64_t page = 16 * usual.kv_bytes_per_token;
  const int64_t enough = usual.Most() - usual.kv_cache + 3 * page - 1;
  ATELIER_ASSERT_OK_AND_ASSIGN(const Inspection planned,
                               Inspect(*checkpoint, {.frontend_memory = enough}));
  EXPECT_EQ(planned.frontend_memory.kv_tokens, 32);
  EXPECT_EQ(planned.frontend_memory.kv_cache, 2 * page);
  EXPECT_THAT(Inspect(*checkpoint, {.frontend_memory = 1000}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("--frontend-memory=1000")));
}

TEST_F(InspectionTest, MovesExpertsFromWorkersToTheFrontend) {
  const auto checkpoint = Open();
  ATELIER_ASSERT_OK_AND_ASSIGN(const Inspection all, Inspect(*checkpoint, {.workers = 2}));
  ATELIER_ASSERT_OK_AND_ASSIGN(const Inspection moved,
                               Inspect(*checkpoint, {.workers = 2, .gpu_experts = 3}));
  EXPECT_EQ(moved.frontend_memory.gpu_experts, 4 * 3 * kExpertElements * 2);
  int64_t left = 0;
  for (const WorkerMemoryPlan& worker : moved.workers) left += worker.weights;
  EXPECT_EQ(left, 4 * 5 * kExpertElements * 2);
  EXPECT_EQ(all.frontend_memory.Resident() + moved.frontend_memory.gpu_experts,
            moved.frontend_memory.Resident());
  EXPECT_GT(moved.frontend_memory.workspace, all.frontend_memory.workspace);
  ASSERT_EQ(moved.notes.size(), 1u);
  EXPECT_THAT(moved.notes[0], HasSubstr("--device-experts=FILE"));
  EXPECT_THAT(Inspect(*checkpoint, {.gpu_experts = 9}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--gpu-experts=9")));
  // The same by name.
  ATELIER_ASSERT_OK_AND_ASSIGN(const ExpertSet skipped,
                               ExpertSet::Parse("0: 5-7", checkpoint->config()));
  ATELIER_ASSERT_OK_AND_ASSIGN(const Inspection named, Inspect(*checkpoint, {.skipped = skipped}));
  EXPECT_EQ(named.workers[0].weights, (4 * 8 - 3) * kExpertElements * 2);
  EXPECT_EQ(named.frontend_memory.gpu_experts, 3 * kExpertElements * 2);
}

TEST_F(InspectionTest, RefusesMoreSlicesThanTheExpertsHave) {
  EXPECT_THAT(Inspect(*Open(), {.workers = 100}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--workers")));
}

Outcome RunInspect(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {ATELIER_BINARY, "inspect"});
  return testing::RunProgram(arguments);
}

TEST_F(InspectionTest, PrintsForPeopleAndForPrograms) {
  const Outcome text = RunInspect({model_->path(), "--workers=2"});
  EXPECT_EQ(text.status, 0) << text.output;
  EXPECT_THAT(text.output, AllOf(HasSubstr("qwen3_moe, 4 layers"), HasSubstr("slice 1/2"),
                                 HasSubstr("BF16"), HasSubstr("on this machine")));
  const Outcome programs = RunInspect({model_->path(), "--json", "--method=int8"});
  const nlohmann::json document = nlohmann::json::parse(programs.output, nullptr, false);
  ASSERT_TRUE(document.is_object()) << programs.output;
  EXPECT_EQ(document["methods"], "INT8");
  EXPECT_EQ(document["model"]["num_experts"], 8);
  EXPECT_TRUE(document["roles"]["worker"]["supported"]);
}

TEST_F(InspectionTest, SaysWhichRoleCannotServeAndWhy) {
  const testing::TempDir broken;
  std::filesystem::copy(model_->path(), broken.path(), std::filesystem::copy_options::recursive);
  testing::WriteSafetensors(broken.File("model.safetensors"),
                            {{"model.norm.weight", {DType::kBF16, {256}, std::string(512, 'x')}}});
  const Outcome outcome = RunInspect({broken.path()});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("workers     cannot serve this"),
                    HasSubstr("frontend    cannot serve this"), HasSubstr("embed_tokens")));
}

TEST_F(InspectionTest, OfAModelBeyondTheFrontendSaysThatItsExpertsAreServed) {
  testing::TempDir dir;
  const std::string config = testing::TinyQwen3MoeConfig(
      R"({"model_type": "qwen3_next", "shared_expert_intermediate_size": 64})");
  testing::WriteSyntheticCheckpoint(dir.path(), {.config_json = config});
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto checkpoint, Checkpoint::Open(dir.path()));
  ATELIER_ASSERT_OK_AND_ASSIGN(const Inspection inspection,
                               Inspect(*checkpoint, {.frontend_memory = 1}));
  ATELIER_EXPECT_OK(inspection.worker.supported);
  ASSERT_EQ(inspection.workers.size(), 1u);
  EXPECT_GT(inspection.workers[0].weights, 4 * 8 * kExpertElements * 2 - 1);
  EXPECT_THAT(inspection.frontend.supported,
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("linear attention")));
  EXPECT_EQ(inspection.frontend_memory.weights, 0);
  EXPECT_EQ(inspection.parameters * 2, inspection.worker.bytes + inspection.frontend.bytes);
  EXPECT_THAT(
      InspectionText(inspection),
      AllOf(HasSubstr("cannot serve this: model_type=qwen3_next"), Not(HasSubstr("KV cache"))));
}

TEST_F(InspectionTest, OfADenseModelSaysThatNobodyServesIt) {
  testing::TempDir dir;
  const std::string config = testing::TinyQwen3MoeConfig(R"({"model_type": "llama"})");
  testing::WriteSyntheticCheckpoint(dir.path(), {.config_json = config});
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto checkpoint, Checkpoint::Open(dir.path()));
  ATELIER_ASSERT_OK_AND_ASSIGN(const Inspection inspection, Inspect(*checkpoint, {}));
  for (const RoleReport* role : {&inspection.worker, &inspection.frontend}) {
    EXPECT_THAT(role->supported,
                StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("no layer with experts")));
  }
  EXPECT_EQ(inspection.parameters * 2, inspection.frontend.bytes);
}

TEST_F(InspectionTest, RefusesBadUsage) {
  EXPECT_EQ(RunInspect({}).status, 2);
  EXPECT_EQ(RunInspect({model_->path(), "--workers=0"}).status, 2);
  EXPECT_EQ(RunInspect({model_->path(), "--workers=100"}).status, 2);
  EXPECT_EQ(RunInspect({model_->path(), "--method=int3"}).status, 2);
  EXPECT_EQ(RunInspect({"https://huggingface.co/x/y?token=z"}).status, 2);
  EXPECT_EQ(RunInspect({model_->path(), "--role=gateway"}).status, 2);
  EXPECT_EQ(RunInspect({model_->path(), "--gpu-experts=9"}).status, 2);
  EXPECT_EQ(RunInspect({model_->path(), "--gpu-experts=1", "--skip-experts=f"}).status, 2);
  EXPECT_EQ(RunInspect({model_->path(), "--role=worker", "--shard-slice=2/2"}).status, 2);
  EXPECT_EQ(RunInspect({model_->path(), "--role=worker", "--shard-slice=0/100"}).status, 2);
  EXPECT_EQ(RunInspect({model_->path(), "--role=worker", "--experts=0-8"}).status, 2);
  for (const char* flag : {"--shard-slice=1/2", "--experts=0-3"}) {
    const Outcome unused = RunInspect({model_->path(), flag});
    EXPECT_EQ(unused.status, 2);
    EXPECT_THAT(unused.output,
                HasSubstr(std::string(flag) + ": says whose files are listed; add --role=worker"));
  }
  EXPECT_EQ(RunInspect({model_->path(), "--role=worker", "--skip-experts=/nowhere"}).status, 1);
  const Outcome absent = RunInspect({"/nowhere"});
  EXPECT_EQ(absent.status, 1);
  EXPECT_THAT(absent.output, HasSubstr("/nowhere"));
  EXPECT_THAT(RunInspect({"org/name"}).output, HasSubstr("hf://org/name"));
}

// All bytes of a role, and no others: roles add up to the files, where nobody reads twice what is
// neither a header nor an end of the data.
TEST_F(InspectionTest, ListsTheBytesOfEachRole) {
  const Outcome outcome = RunInspect({model_->path(), "--json", "--role=all"});
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const nlohmann::json document = nlohmann::json::parse(outcome.output, nullptr, false);
  const nlohmann::json& needs = document["needs"];
  ASSERT_EQ(needs.size(), 2u);
  EXPECT_EQ(needs[0]["role"], "--role=frontend");
  EXPECT_EQ(needs[1]["role"], "--role=worker --shard-slice=0/1");
  ByteRanges all;
  for (const nlohmann::json& role : needs) {
    ASSERT_EQ(role["files"].size(), 1u);
    const nlohmann::json& file = role["files"][0];
    EXPECT_EQ(file["file"], "model.safetensors");
    uint64_t bytes = 0;
    for (const nlohmann::json& range : file["ranges"]) {
      all.Add({range[0], range[1]});
      bytes += range[1].get<uint64_t>() - range[0].get<uint64_t>();
    }
    EXPECT_EQ(file["needed_bytes"], bytes);
    EXPECT_LT(bytes, file["file_bytes"]);
  }
  const auto size = std::filesystem::file_size(model_->path() + "/model.safetensors");
  EXPECT_EQ(all.ranges(), (std::vector<ByteRange>{{0, size}}));
  const Outcome text =
      RunInspect({model_->path(), "--role=worker", "--shard-slice=1/2", "--experts=2-5"});
  EXPECT_THAT(text.output, HasSubstr("needs       --role=worker --shard-slice=1/2 --experts=2-5"));
}

TEST_F(InspectionTest, ReadsHeadersOfAUrlAsOfAFolder) {
  testing::FileServer server(model_->path());
  const std::vector<std::string> flags = {"--json", "--role=all", "--workers=2"};
  const auto inspect = [&flags](const std::string& what) {
    std::vector<std::string> arguments = flags;
    arguments.insert(arguments.begin(), what);
    return RunInspect(arguments);
  };
  const Outcome remote = inspect(server.url());
  EXPECT_EQ(remote.status, 0);
  nlohmann::json expected = nlohmann::json::parse(inspect(model_->path()).output);
  expected["path"] = server.url();
  EXPECT_EQ(nlohmann::json::parse(remote.output, nullptr, false), expected);
  EXPECT_LT(server.body_bytes(),
            std::filesystem::file_size(model_->path() + "/model.safetensors") / 8);
  // As a model of a hub.
  server.Behave([](const testing::FileServer::Request& request) {
    return testing::FileServer::Answer{
        .status = request.path.find("resolve") == std::string::npos ? 0 : 404};
  });
  const Outcome absent = RunInspect({"hf://org/name@v1", "--hf-endpoint=" + server.url()});
  EXPECT_EQ(absent.status, 1);
  EXPECT_THAT(absent.output, HasSubstr("org/name/resolve/v1/config.json"));
}

// A Ctrl-C, and a terminal that is closed.
class Interruption : public InspectionTest, public ::testing::WithParamInterface<int> {};

TEST_P(Interruption, LeavesNothing) {
  testing::FileServer server(model_->path());
  std::atomic<bool> asked = false;
  server.Behave([&asked](const testing::FileServer::Request& request) {
    asked = asked || request.range.has_value();
    return testing::FileServer::Answer{.pause = request.range ? absl::Milliseconds(100)
                                                              : absl::ZeroDuration()};
  });
  const testing::TempDir dir;
  testing::ChildProcess process({ATELIER_BINARY, "inspect", server.url()}, dir.File("log"));
  const std::string name = absl::StrCat("atelier-inspect-", process.pid(), "-");
  const auto folders = [&name] {
    int count = 0;
    for (const std::string parent : {"/dev/shm", "/tmp"}) {
      for (const auto& entry : std::filesystem::directory_iterator(parent)) {
        count += entry.path().filename().string().find(name) == 0 ? 1 : 0;
      }
    }
    return count;
  };
  ASSERT_TRUE(testing::WaitUntil([&] { return asked.load(); }));
  EXPECT_EQ(folders(), 1);
  process.Signal(GetParam());
  EXPECT_EQ(process.Wait(), 128 + GetParam());
  EXPECT_EQ(folders(), 0);
}

INSTANTIATE_TEST_SUITE_P(Inspect, Interruption, ::testing::Values(SIGINT, SIGHUP));

}  // namespace
}  // namespace atelier
