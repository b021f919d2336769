#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/run_program.h"
#include "nlohmann/json.hpp"

namespace atelier {
namespace {

using ::atelier::testing::Outcome;
using ::testing::AllOf;
using ::testing::HasSubstr;

Outcome Atelier(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), ATELIER_BINARY);
  return testing::RunProgram(arguments);
}

TEST(AtelierTool, ExplainsItself) {
  const Outcome help = Atelier({"--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.output, HasSubstr("doctor"));
  EXPECT_THAT(Atelier({"--version"}).output, HasSubstr("atelier 0."));
  EXPECT_EQ(Atelier({}).status, 2);
  const Outcome unknown = Atelier({"docter"});
  EXPECT_EQ(unknown.status, 2);
  EXPECT_THAT(unknown.output, AllOf(HasSubstr("no command \"docter\""), HasSubstr("usage:")));
}

TEST(AtelierTool, FailsWhenItsOutputIsLost) {
  const Outcome lost =
      testing::RunProgram({"/bin/sh", "-c", std::string(ATELIER_BINARY) + " matrix > /dev/full"});
  EXPECT_EQ(lost.status, 1);
  EXPECT_THAT(lost.output, HasSubstr("cannot be written"));
}

TEST(AtelierDoctor, SaysHowThisMachineIs) {
  const Outcome outcome = Atelier({"doctor", "--measure=1ms", "--measure-memory=16MiB"});
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  for (const char* topic : {"cpu ", "numa ", "huge pages ", "bandwidth ", "0 errors"}) {
    EXPECT_THAT(outcome.output, HasSubstr(topic));
  }
}

TEST(AtelierDoctor, WritesJson) {
  const Outcome outcome = Atelier({"doctor", "--json", "--measure=0s"});
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  const nlohmann::json document = nlohmann::json::parse(outcome.output, nullptr, false);
  ASSERT_TRUE(document.is_object()) << outcome.output;
  EXPECT_EQ(document["errors"], 0);
  EXPECT_GT(document["findings"].size(), 10u);
}

TEST(AtelierDoctor, RefusesBadFlags) {
  EXPECT_EQ(Atelier({"doctor", "--measure=fast"}).status, 2);
  EXPECT_EQ(Atelier({"doctor", "--measure-memory=0"}).status, 2);
  EXPECT_EQ(Atelier({"doctor", "all"}).status, 2);
}

}  // namespace
}  // namespace atelier
