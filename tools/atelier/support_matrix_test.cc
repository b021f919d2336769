#include "tools/atelier/support_matrix.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/read_file.h"

namespace atelier {
namespace {

using testing::ReadFile;

namespace fs = std::filesystem;

TEST(SupportMatrix, IsWhatThePageSays) {
  EXPECT_EQ(ReadFile("docs/support-matrix.md"), SupportMatrix())
      << "write it anew: build/release/bin/atelier matrix > docs/support-matrix.md";
}

// "Suite.Name" of the page -> "(Suite, Name)" in a test.
TEST(SupportMatrix, NamesTestsThatExist) {
  std::set<std::string> wanted;
  const std::string page = SupportMatrix();
  const std::regex name("`([A-Z][A-Za-z0-9]+)\\.([A-Z][A-Za-z0-9]+)`");
  for (std::sregex_iterator it(page.begin(), page.end(), name), end; it != end; ++it) {
    wanted.insert(absl::StrCat("(", (*it)[1].str(), ", ", (*it)[2].str(), ")"));
  }
  EXPECT_GE(wanted.size(), 14u);
  for (const char* folder : {"libs", "services", "tests"}) {
    for (const auto& item : fs::recursive_directory_iterator(folder)) {
      if (!absl::EndsWith(item.path().string(), "_test.cc")) continue;
      const std::string text = ReadFile(item.path());
      std::erase_if(wanted, [&](const std::string& test) { return absl::StrContains(text, test); });
    }
  }
  EXPECT_THAT(wanted, ::testing::IsEmpty());
}

}  // namespace
}  // namespace atelier
