#include "libs/base/command_line.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "gtest/gtest.h"

namespace atelier {
namespace {

[[noreturn]] void AnswerInto(const char* output, const char* flag) {
  if (std::freopen(output, "w", stdout) == nullptr) std::_Exit(99);
  const FlagTable table("usage: program", {});
  const char* const arguments[] = {"program", flag};
  std::_Exit(AnswerCommandLine("program", table, 2, arguments, [] {
               return absl::OkStatus();
             }).value_or(98));
}

TEST(CommandLineDeathTest, AnAnswerThatIsLostIsAFailure) {
  for (const char* flag : {"--help", "--version"}) {
    EXPECT_EXIT(AnswerInto("/dev/full", flag), ::testing::ExitedWithCode(1),
                "program: standard output cannot be written");
    EXPECT_EXIT(AnswerInto("/dev/null", flag), ::testing::ExitedWithCode(0), "");
  }
}

}  // namespace
}  // namespace atelier
