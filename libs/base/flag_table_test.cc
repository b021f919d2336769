#include "libs/base/flag_table.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/base/command_line.h"

namespace atelier {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

struct Values {
  std::string host = "127.0.0.1";
  int port = 20000;
  std::string isa = "auto";
  std::vector<std::string> workers;
  int64_t bytes = int64_t{1} << 30;
  absl::Duration timeout = absl::Seconds(10);
  bool insecure = false;
};

FlagTable TableFor(Values* values) {
  return FlagTable("usage: program",
                   {{"Network",
                     {StringFlag("host", "ADDRESS", "Where to listen.", &values->host),
                      IntFlag("port", "Port to listen on.", {0, 65535}, &values->port),
                      ListFlag("workers", "ADDRESS,...", "The workers.", &values->workers),
                      DurationFlag("worker-timeout", "Of one call.", &values->timeout),
                      SwitchFlag("insecure", "Allows it.", &values->insecure)}},
                    {"Compute",
                     {ChoiceFlag("cpu-isa", {"auto", "scalar", "avx2"}, "Caps it.", &values->isa),
                      BytesFlag("kv-cache-bytes", "Budget.", &values->bytes)}}});
}

absl::StatusOr<CommandLine> Parse(const FlagTable& table, std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "program");
  return table.Parse(static_cast<int>(arguments.size()), arguments.data());
}

std::string ErrorOf(std::vector<const char*> arguments) {
  Values values;
  return std::string(Parse(TableFor(&values), std::move(arguments)).status().message());
}

TEST(FlagTable, SetsEveryKindOfFlag) {
  Values values;
  const auto parsed =
      Parse(TableFor(&values),
            {"--host=::1", "--port", "0", "--workers=a:1,unix:/b", "--worker_timeout=250ms",
             "--insecure", "--cpu-isa=avx2", "--kv_cache-bytes=1.5MiB"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, CommandLine::kRun);
  EXPECT_EQ(values.host, "::1");
  EXPECT_EQ(values.port, 0);
  EXPECT_THAT(values.workers, ElementsAre("a:1", "unix:/b"));
  EXPECT_EQ(values.timeout, absl::Milliseconds(250));
  EXPECT_TRUE(values.insecure);
  EXPECT_EQ(values.isa, "avx2");
  EXPECT_EQ(values.bytes, 3 << 19);
}

TEST(FlagTable, KeepsDefaultsAndTakesTheSameValueTwice) {
  Values values;
  ASSERT_TRUE(Parse(TableFor(&values), {"--port=1", "--insecure", "--port", "1"}).ok());
  EXPECT_EQ(values.port, 1);
  EXPECT_TRUE(values.insecure);
  EXPECT_EQ(values.host, "127.0.0.1");
}

TEST(FlagTable, TwoValuesOfOneFlagAreRefused) {
  EXPECT_THAT(ErrorOf({"--port=1", "--port=2"}),
              HasSubstr("--port=2: given before as 1; give it once"));
  EXPECT_THAT(ErrorOf({"--insecure", "--insecure=false"}), HasSubstr("--insecure=false"));
  std::vector<std::string> got;
  FlagSpec list = ListFlag("listen", "ADDRESS", "", &got);
  list.repeatable = true;
  list.set = [&](absl::string_view text) {
    got.emplace_back(text);
    return absl::OkStatus();
  };
  ASSERT_TRUE(Parse(FlagTable("", {{"", {list}}}), {"--listen=a", "--listen=b"}).ok());
  EXPECT_THAT(got, ElementsAre("a", "b"));
}

TEST(FlagTable, ValuesThatAreNotOneWordAreQuoted) {
  EXPECT_THAT(ErrorOf({"--port="}), HasSubstr("--port=\"\": must be"));
  EXPECT_THAT(ErrorOf({"--host="}), HasSubstr("--host=\"\": must not be empty"));
  EXPECT_THAT(ErrorOf({"--port=a\tb"}), HasSubstr("--port=\"a\\tb\": must be"));
}

TEST(FlagTable, ErrorsNameFlagValueAndWhatIsValid) {
  EXPECT_THAT(ErrorOf({"--port=70000"}),
              HasSubstr("--port=70000: must be a whole number from 0 to 65535"));
  EXPECT_THAT(ErrorOf({"--port=1x"}), HasSubstr("--port=1x: must be"));
  EXPECT_THAT(ErrorOf({"--port= 5"}), HasSubstr("must be a whole number"));
  EXPECT_THAT(ErrorOf({"--cpu-isa=amx9"}), HasSubstr("must be one of auto, scalar, avx2"));
  EXPECT_THAT(ErrorOf({"--workers=a:1,,b:2"}), HasSubstr("without empty elements"));
  EXPECT_THAT(ErrorOf({"--worker-timeout=10"}), HasSubstr("--worker-timeout=10: must be a time"));
  EXPECT_THAT(ErrorOf({"--worker-timeout=-1s"}), HasSubstr("must be a time"));
  EXPECT_THAT(ErrorOf({"--kv-cache-bytes=lots"}), HasSubstr("must be a number of bytes"));
  EXPECT_THAT(ErrorOf({"--insecure=maybe"}), HasSubstr("must be true or false"));
}

TEST(FlagTable, UnknownFlagSuggestsTheNearest) {
  EXPECT_THAT(ErrorOf({"--prot=1"}), AllOf(HasSubstr("unknown flag --prot"), HasSubstr("--port?")));
  EXPECT_THAT(ErrorOf({"--wrker-timeot=1"}), HasSubstr("did you mean --worker-timeout?"));
  for (const char* far : {"--speed=1", "--tls", "--workers-per-node=1", "--po=1"}) {
    EXPECT_THAT(ErrorOf({far}), AllOf(HasSubstr("unknown flag"), Not(HasSubstr("did you mean"))));
  }
  EXPECT_THAT(ErrorOf({"serve"}), HasSubstr("unexpected argument \"serve\""));
}

TEST(FlagTable, ValueMustFollowItsFlag) {
  EXPECT_THAT(ErrorOf({"--port"}), HasSubstr("--port needs a value"));
  EXPECT_THAT(ErrorOf({"--host", "--port=1"}), HasSubstr("--host needs a value"));
}

TEST(FlagTable, HelpAndVersionEndParsing) {
  Values values;
  const FlagTable table = TableFor(&values);
  EXPECT_EQ(Parse(table, {"--help", "--nonsense"}).value(), CommandLine::kHelp);
  EXPECT_EQ(Parse(table, {"-h"}).value(), CommandLine::kHelp);
  EXPECT_THAT(ErrorOf({"--help=port"}), HasSubstr("--help takes no value"));
  EXPECT_THAT(ErrorOf({"--version=1"}), HasSubstr("--version takes no value"));
  EXPECT_EQ(Parse(table, {"--port=5", "--version"}).value(), CommandLine::kVersion);
  EXPECT_THAT(table.Help(),
              AllOf(HasSubstr("--cpu-isa=auto|scalar|avx2\n"), HasSubstr("Budget. Default: 1 GiB."),
                    HasSubstr("Of one call. Default: 10s."), HasSubstr("--insecure\n")));
}

TEST(AnswerCommandLine, HelpIsZeroBadFlagsAreTwoAndTheRestGoesOn) {
  Values values;
  const FlagTable table = TableFor(&values);
  const auto answer = [&](const char* flag, const absl::Status& valid) {
    const char* argv[] = {"program", flag};
    return AnswerCommandLine("program", table, 2, argv, [&] { return valid; });
  };
  EXPECT_EQ(answer("--help", absl::OkStatus()), 0);
  EXPECT_EQ(answer("--version", absl::OkStatus()), 0);
  EXPECT_EQ(answer("--port=1", absl::OkStatus()), std::nullopt);
  EXPECT_EQ(answer("--port=x", absl::OkStatus()), 2);
  EXPECT_EQ(answer("--port=1", absl::InvalidArgumentError("no")), 2);
}

TEST(FailureExitStatus, IsTwoOnlyForAFlagsValue) {
  EXPECT_EQ(FailureExitStatus(absl::InvalidArgumentError("--threads=99: too many")), 2);
  EXPECT_EQ(FailureExitStatus(absl::UnavailableError("--connect-timeout=1s has passed")), 1);
  EXPECT_EQ(FailureExitStatus(absl::InvalidArgumentError("config.json: no such field")), 1);
}

TEST(NameFlags, TurnsFieldsIntoFlags) {
  const absl::Status named = NameFlags(absl::InvalidArgumentError("num_threads=99: node 0 has 2"),
                                       {{"num_threads=", "--threads="}});
  EXPECT_EQ(named.message(), "--threads=99: node 0 has 2");
  EXPECT_EQ(named.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(NameFlags(absl::OkStatus(), {{"a", "b"}}).ok());
}

TEST(ParseBytes, ReadsUnitsAndRefusesTheRest) {
  EXPECT_EQ(ParseBytes("0").value(), 0);
  EXPECT_EQ(ParseBytes("9007199254740993").value(), 9007199254740993);
  EXPECT_EQ(ParseBytes("2GB").value(), 2000000000);
  EXPECT_EQ(ParseBytes("0.5TiB").value(), int64_t{1} << 39);
  for (const char* bad : {"", "-1", "GiB", "1e400GiB", "nanGiB", "1 GiB x", "9999999TiB", "0x10",
                          "1e3", "1.5", " 1", "1.2.3GiB", ".5GiB"}) {
    EXPECT_FALSE(ParseBytes(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace atelier
