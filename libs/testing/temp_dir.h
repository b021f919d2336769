#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "libs/base/check.h"

namespace atelier::testing {

// A fresh directory, removed with all it holds at the end of the test.
class TempDir {
 public:
  TempDir() {
    std::string path = (std::filesystem::temp_directory_path() / "atelier-test-XXXXXX").string();
    ATELIER_CHECK(::mkdtemp(path.data()) != nullptr);
    path_ = path;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace atelier::testing
