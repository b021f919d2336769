#include "libs/model/placement_file.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/status_matchers.h"

namespace atelier {
namespace {

using ::atelier::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

PlacementFile Example() {
  PlacementFile file;
  file.model_digest = "0123";
  file.num_experts = 16;
  file.workers = {{"a", "h1", 1, int64_t{1} << 40, {{{1, 2, 5}, 0, 8, 0, 1}, {{3}, 8, 16, 1, 2}}},
                  {"b \"quoted\"", "", 0, 0, {}}};
  return file;
}

TEST(PlacementFile, IsReadAsItIsWritten) {
  ATELIER_ASSERT_OK_AND_ASSIGN(const PlacementFile read,
                               PlacementFile::Parse(Example().ToJson(), "p.json"));
  EXPECT_EQ(read, Example());
  ATELIER_ASSERT_OK_AND_ASSIGN(const PlacedWorker* worker, read.Find("a"));
  EXPECT_EQ(*worker, read.workers[0]);
  EXPECT_THAT(read.Find("c"), StatusIs(absl::StatusCode::kInvalidArgument,
                                       AllOf(HasSubstr("no worker \"c\""), HasSubstr("a, b"))));
}

TEST(PlacementFile, IsAListOfWorkersToo) {
  ATELIER_ASSERT_OK_AND_ASSIGN(const std::vector<PlacedWorker> workers,
                               ParseWorkerList(Example().ToJson(), "p.json"));
  EXPECT_EQ(workers, Example().workers);
  ATELIER_EXPECT_OK(ParseWorkerList(R"({"workers": [{"name": "a"}]})", "w.json"));
}

TEST(PlacementFile, EveryBadFieldIsNamed) {
  const std::string good =
      R"({"atelier_placement": 1, "model_digest": "0", "num_experts": 16, "workers": [{"name": "a",)"
      R"( "host": "h", "numa_node": 0, "memory_bytes": 5, "shards": [{"layers": "1-3", "experts":)"
      R"( "0-7", "slice": "0/1"}]}]})";
  ATELIER_ASSERT_OK(PlacementFile::Parse(good, "p.json"));
  // What of the good text is replaced, by what, and what the message has to say.
  const std::vector<std::vector<std::string>> bad = {
      {"{", "[", "p.json"},
      {": 1,", ": 2,", "atelier_placement=2"},
      {"\"atelier_placement\": 1,", "", "atelier_placement is missing"},
      {"\"model_digest\": \"0\"", "\"model_digest\": 7", "model_digest=7"},
      {"16", "0", "num_experts=0"},
      {"16", "7", "workers[0].shards[0]: experts 0-7: there are 0-6"},
      {"\"num_experts\": 16,", "", "num_experts is missing"},
      {"\"workers\": [", "\"others\": [", "workers must be a list"},
      {"\"name\": \"a\",", "", "workers[0]: name is missing"},
      {"\"a\"", "5", "workers[0]: name=5"},
      {"\"h\"", "[]", "workers[0]: host="},
      {"\"numa_node\": 0", "\"numa_node\": -1", "workers[0]: numa_node=-1"},
      {"\"memory_bytes\": 5", "\"memory_bytes\": -5", "workers[0]: memory_bytes=-5"},
      {"\"memory_bytes\": 5", "\"memory_bytes\": \"5\"", "memory_bytes=\"5\" must be an integer"},
      {"[{\"layers\"", "{\"layers\"", "not valid JSON"},
      {"\"1-3\"", "\"3-1\"", "shards[0]: layers: \"3-1\""},
      {"\"1-3\"", "\"1-999999\"", "shards[0]: layers"},
      {"\"1-3\"", "7", "shards[0]: layers=7"},
      {"\"0-7\"", "\"0\"", "shards[0]: experts \"0\""},
      {"\"0/1\"", "\"1/1\"", "shards[0]: slice \"1/1\""},
      {"[{\"name\"", "[7, {\"name\"", "workers[0]: must be an object"},
      {"[{\"layers\"", "[7, {\"layers\"", "shards[0]: must be an object"},
      {"\"shards\": [{\"layers\": \"1-3\", \"experts\": \"0-7\", \"slice\": \"0/1\"}]",
       "\"shards\": 1", "workers[0]: shards must be a list"},
      {"}]}]}", "}]}, {\"name\": \"a\"}]}", "workers[1]: two workers are named \"a\""},
  };
  for (const std::vector<std::string>& change : bad) {
    std::string text = good;
    text.replace(text.find(change[0]), change[0].size(), change[1]);
    EXPECT_THAT(PlacementFile::Parse(text, "p.json"),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("p.json"), HasSubstr(change[2]))))
        << text;
  }
}

}  // namespace
}  // namespace atelier
