#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/model/placement_file.h"
#include "libs/testing/run_program.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/synthetic_checkpoint.h"
#include "libs/testing/temp_dir.h"
#include "nlohmann/json.hpp"
#include "tools/atelier/expert_loads.h"

namespace atelier {
namespace {

using ::atelier::testing::Outcome;
using ::atelier::testing::StatusIs;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The tiny GLM model: layers 1-3 with 16 experts of 192 columns, 294912 bytes each.
constexpr int64_t kExpertBytes = 3 * 256 * 192 * 2;
constexpr int64_t kOnce = 3 * 16 * kExpertBytes;

class AtelierPlan : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = std::make_unique<testing::TempDir>();
    testing::WriteSyntheticCheckpoint(model_->path(),
                                      {.config_json = testing::TinyGlm4MoeConfig(), .seed = 5});
  }
  static void TearDownTestSuite() { model_.reset(); }

  Outcome Plan(std::vector<std::string> flags) const {
    flags.insert(flags.begin(), {ATELIER_BINARY, "plan", model_->path()});
    return testing::RunProgram(flags);
  }
  json PlanJson(std::vector<std::string> flags) const {
    flags.push_back("--json");
    const Outcome outcome = Plan(std::move(flags));
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    return json::parse(outcome.output, nullptr, false);
  }
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(dir_.File(name)) << text;
    return dir_.File(name);
  }
  PlacementFile Read(const std::string& path) const {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return PlacementFile::Parse(text.str(), path).value();
  }
  // Expert e of every layer is chosen e + 1 times.
  std::string RisingLoads() const {
    json layers;
    for (const char* layer : {"1", "2", "3"}) {
      for (int expert = 0; expert < 16; ++expert) layers[layer].push_back(expert + 1);
    }
    return Write("loads.json", json{{"expert_loads", layers}}.dump());
  }

  static inline std::unique_ptr<testing::TempDir> model_;
  testing::TempDir dir_;
};

TEST_F(AtelierPlan, WritesAPlacementThatSurvivesTheLossOfAnyWorker) {
  const std::string path = dir_.File("p.json");
  const Outcome outcome = Plan({"--workers=4", "--memory=64MiB", "--out=" + path});
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("3 layers of 16 experts as BF16"),
                    HasSubstr("2 copies of each, no two in one host"),
                    HasSubstr("2 parts a layer; a worker answers a row with up to 1 sums"),
                    HasSubstr("\nworker-3 "), HasSubstr("balancedness 1.000"),
                    HasSubstr("worker    (of 4): 0 of 6 parts"), HasSubstr("EPLB with 32 slots")));
  const PlacementFile file = Read(path);
  EXPECT_EQ(file.num_experts, 16);
  EXPECT_EQ(file.model_digest.size(), 64u);
  ASSERT_EQ(file.workers.size(), 4u);
  EXPECT_EQ(file.workers[1].host, "host-1");
  for (const PlacedWorker& worker : file.workers) {
    EXPECT_EQ(worker.memory_bytes, 64 << 20);
    ASSERT_EQ(worker.shards.size(), 1u);
    EXPECT_THAT(worker.shards[0].layers, ElementsAre(1, 2, 3));
    EXPECT_EQ(worker.shards[0].expert_end - worker.shards[0].expert_begin, 8);
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_.path()), {}), 1);
}

TEST_F(AtelierPlan, BalancesLoadsWithinEveryMemoryAndKeepsHostsApart) {
  const std::string workers = Write(
      "workers.json", absl::StrCat(R"({"workers": [{"name": "a", "host": "x", "memory_bytes": )",
                                   kOnce, R"(}, {"name": "b", "host": "y", "numa_node": 0}, )",
                                   R"({"name": "c", "host": "y", "numa_node": 1}]})"));
  const json plan =
      PlanJson({"--workers=" + workers, absl::StrCat("--memory=", kOnce / 2),
                "--loads=" + RisingLoads(), "--blocks=16", "--out=" + dir_.File("p.json")});
  EXPECT_EQ(plan["apart"], "host");
  EXPECT_EQ(plan["bytes"], 2 * kOnce);
  EXPECT_EQ(plan["bytes_of_one_copy"], kOnce);
  EXPECT_EQ(plan["moved_bytes"], 2 * kOnce);
  EXPECT_EQ(plan["workers"][0]["bytes"], kOnce);
  EXPECT_EQ(plan["workers"][1]["bytes"], kOnce / 2);
  // Host x must hold everything; y's workers divide it evenly: 34 : 17 : 17 of 68.
  EXPECT_THAT(plan["workers"][1]["load"].get<double>(), DoubleEq(0.25));
  EXPECT_EQ(plan["losses"][2]["domain"], "host");
  EXPECT_EQ(plan["losses"][2]["uncovered"], 0);
  EXPECT_GT(plan["eplb"]["losses"][0]["uncovered"], 0);
}

TEST_F(AtelierPlan, ChoosesFinerPartsWhereLoadsNeedThem) {
  const std::vector<std::string> flags = {"--workers=3", "--memory=64MiB"};
  EXPECT_EQ(PlanJson(flags)["parts_per_layer"], 3);
  std::vector<std::string> with_loads = flags;
  with_loads.push_back("--loads=" + RisingLoads());
  const json plan = PlanJson(with_loads);
  EXPECT_GT(plan["parts_per_layer"], 3);
  EXPECT_GE(plan["balancedness"]["worst"], 0.95);
  std::vector<std::string> sliced = flags;
  sliced.insert(sliced.end(), {"--slices=3", "--blocks=1"});
  EXPECT_EQ(PlanJson(sliced)["parts_per_layer"], 3);
}

TEST_F(AtelierPlan, MovesOnlyWhatALostWorkerHeld) {
  const std::string path = dir_.File("p.json");
  const json first = PlanJson({"--workers=4", "--memory=64MiB", "--blocks=8", "--out=" + path});
  EXPECT_EQ(PlanJson({"--current=" + path})["moved_bytes"], 0);
  PlacementFile file = Read(path);
  const std::string lost = file.workers.back().name;
  json workers;
  for (int i = 0; i < 3; ++i) {
    workers["workers"].push_back(
        {{"name", absl::StrCat("worker-", i)}, {"host", std::to_string(i)}});
  }
  const std::string left = Write("left.json", workers.dump());
  const json second = PlanJson({"--workers=" + left, "--memory=64MiB", "--current=" + path,
                                "--tolerance=1000", "--out=" + dir_.File("q.json")});
  EXPECT_EQ(second["moved_bytes"], first["workers"][3]["bytes"]);
  EXPECT_EQ(second["parts_per_layer"], 8);
  EXPECT_EQ(second["losses"][0]["uncovered"], 0);
  // A placement of other parts would change bits.
  const Outcome other = Plan({"--current=" + path, "--blocks=4"});
  EXPECT_EQ(other.status, 2);
  EXPECT_THAT(other.output, HasSubstr("--current: its parts are others than --blocks"));
}

TEST_F(AtelierPlan, RefusesThePlacementOfAnotherModel) {
  const std::string path = dir_.File("p.json");
  PlanJson({"--workers=2", "--memory=64MiB", "--out=" + path});
  PlacementFile file = Read(path);
  file.model_digest = std::string(64, 'a');
  const Outcome other = Plan({"--current=" + Write("q.json", file.ToJson())});
  EXPECT_EQ(other.status, 2);
  EXPECT_THAT(other.output,
              AllOf(HasSubstr("q.json: model_digest is aaaa"), HasSubstr("another model's")));
}

TEST_F(AtelierPlan, AFileThatCannotBeWrittenIsAFailure) {
  const Outcome outcome = Plan({"--workers=2", "--memory=64MiB", "--out=/nonexistent/p"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.output, HasSubstr("--out=/nonexistent/p: cannot be written: No such file"));
}

TEST_F(AtelierPlan, SaysWhatIsMissing) {
  const Outcome little = Plan({"--workers=2", absl::StrCat("--memory=", kOnce - 1), "--blocks=1"});
  EXPECT_EQ(little.status, 1);
  EXPECT_THAT(little.output, AllOf(HasSubstr("2 copies of every expert, no two in one worker"),
                                   HasSubstr("2 bytes are missing")));
  const Outcome one_host = Plan({"--workers=1", "--memory=1GiB", "--copies=2"});
  EXPECT_EQ(one_host.status, 1);
  EXPECT_THAT(one_host.output, HasSubstr("there is only 1 worker"));
}

TEST_F(AtelierPlan, BadUsageIsStatus2NamingTheFlag) {
  const std::string unnamed = Write("unnamed.json", R"({"workers": [{"host": "h"}]})");
  const std::string not_json = Write("not.json", "workers");
  const std::string bad_loads = Write("bad.json", R"({"expert_loads": {"0": []}})");
  const std::string placement =
      Write("other.json", R"({"atelier_placement": 1, "num_experts": 8, "workers": [{"name": "a",
        "memory_bytes": 9, "shards": [{"layers": "1-3", "experts": "0-7"}]}]})");
  const std::string link = dir_.File("link");
  std::filesystem::create_symlink(placement, link);
  const std::string w = "--workers=2", m = "--memory=1GiB";
  const std::vector<std::pair<std::vector<std::string>, std::string>> bad = {
      {{}, "--workers is required"},
      {{"--workers=0", m}, "--workers=0: must be from 1 to 1024"},
      {{"--workers=1025", m}, "--workers=1025"},
      {{"--workers=/nonexistent", m}, "--workers=/nonexistent: "},
      {{"--workers=" + unnamed, m}, "unnamed.json: workers[0]: name is missing"},
      {{"--workers=" + not_json, m}, "not.json is not valid JSON"},
      {{w}, "--memory: must say what worker worker-0"},
      {{w, "--memory=much"}, "--memory=much"},
      {{w, m, "--current=/nonexistent"}, "--current=/nonexistent: "},
      {{w, m, "--current=" + not_json}, "not.json is not valid JSON"},
      {{m, "--current=" + placement}, "--current: is of a model with 8 experts, not 16"},
      {{w, m, "--loads=/nonexistent"}, "--loads=/nonexistent: "},
      {{w, m, "--loads=" + bad_loads}, "bad.json: expert_loads: \"0\" is no layer"},
      {{w, m, "--batch=0"}, "--batch=0"},
      {{w, m, "--method=fp3"}, "--method=fp3"},
      {{w, m, "--copies=-1"}, "--copies=-1"},
      {{w, m, "--extra-copies=-1"}, "--extra-copies=-1"},
      {{w, m, "--apart=rack"}, "--apart=rack"},
      {{w, m, "--blocks=17"}, "--blocks=17: a layer has 16 experts"},
      {{w, m, "--slices=0"}, "--slices=0"},
      {{w, m, "--slices=13"}, "--slices: slice "},
      {{w, m, "--tolerance=-1"}, "--tolerance=-1"},
      {{w, m, "--out=/dev/null"}, "--out=/dev/null: is no regular file"},
      {{w, m, "--out=" + link}, "link: is a symbolic link"},
      {{w, m, "--out=" + dir_.path()}, ": is a directory"},
      {{w, m, "--json=2"}, "--json=2"},
      {{w, m, "stray"}, "stray"},
  };
  for (const auto& [flags, part] : bad) {
    const Outcome outcome = Plan(flags);
    EXPECT_EQ(outcome.status, 2) << absl::StrJoin(flags, " ");
    EXPECT_THAT(outcome.output, HasSubstr(part));
  }
  const Outcome none = testing::RunProgram({ATELIER_BINARY, "plan", "--workers=2"});
  EXPECT_EQ(none.status, 2);
  EXPECT_THAT(none.output, HasSubstr("PATH is missing"));
  const Outcome help = testing::RunProgram({ATELIER_BINARY, "plan", "--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.output, AllOf(HasSubstr("examples:"), HasSubstr("exit status:")));
}

ModelConfig TinyConfig() { return ParseModelConfig(testing::TinyGlm4MoeConfig()).value(); }

TEST(ExpertLoads, NamesWhatIsWrong) {
  const std::string row = "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16.5]";
  const auto text = [&](const std::string& last) {
    return absl::StrCat(R"({"expert_loads": {"1": )", row, R"(, "2": )", row, ", ", last, "}}");
  };
  ATELIER_ASSERT_OK_AND_ASSIGN(const ExpertLoads loads,
                               ParseExpertLoads(text("\"3\": " + row), "l", TinyConfig()));
  EXPECT_EQ(loads[3][15], 16.5);
  EXPECT_TRUE(loads[0].empty());
  for (const auto& [last, part] : std::vector<std::pair<std::string, std::string>>{
           {"\"3\": [1]", "layer 3: must be a list of 16"},
           {"\"3\": 1", "layer 3: must be a list of 16"},
           {"\"3\": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,-1]", "layer 3"},
           {"\"3\": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,\"1\"]", "layer 3"},
           {"\"3\": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,1.7e308,1.7e308]", "layer 3"},
           {"\"4\": " + row, "\"4\" is no layer"},
           {"\"x\": " + row, "\"x\" is no layer"},
           {"\"2\": " + row, "layer 3 is missing"}}) {
    EXPECT_THAT(
        ParseExpertLoads(text(last), "l", TinyConfig()),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("l: expert_loads: " + part)));
  }
  EXPECT_THAT(ParseExpertLoads("{}", "l", TinyConfig()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("must be an object")));
}

TEST(ExpertLoads, LargerBatchesReadMoreExperts) {
  MoeConfig moe;
  moe.num_experts = 4;
  moe.top_k = 2;
  EXPECT_THAT(ActivationRates({}, moe, 1), ElementsAre(0.5, 0.5, 0.5, 0.5));
  EXPECT_THAT(ActivationRates({0, 0, 0, 0}, moe, 2), ElementsAre(0.75, 0.75, 0.75, 0.75));
  EXPECT_THAT(ActivationRates({8, 4, 2, 2}, moe, 1), ElementsAre(1, 0.5, 0.25, 0.25));
  EXPECT_THAT(ActivationRates({8, 4, 2, 2}, moe, 2), ElementsAre(1, 0.75, 0.4375, 0.4375));
}

}  // namespace
}  // namespace atelier
