#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace atelier {

// One thing that `atelier` does: `atelier NAME flags…`. Its file declares the flags and does the
// work.
struct Command {
  absl::string_view name;
  absl::string_view summary;  // one line of `atelier --help`
  // argv[0] is the command's name; the result is the exit status.
  int (*run)(int argc, const char* const* argv);
};

// The path or URL before the flags, taken out of them; empty = none.
std::string TakeOperand(std::vector<const char*>& arguments);

int RunDoctor(int argc, const char* const* argv);
int RunFetch(int argc, const char* const* argv);
int RunInspect(int argc, const char* const* argv);
int RunMatrix(int argc, const char* const* argv);
int RunPack(int argc, const char* const* argv);
int RunPlan(int argc, const char* const* argv);

}  // namespace atelier
