#include <array>
#include <iostream>
#include <string>

#include "absl/strings/string_view.h"
#include "libs/base/command_line.h"
#include "libs/base/quoted.h"
#include "libs/base/version.h"
#include "tools/atelier/command.h"

namespace atelier {
namespace {

constexpr std::array kCommands = {
    Command{"doctor", "looks at this machine as a host of workers and says what to mend",
            RunDoctor},
    Command{"fetch", "downloads of a published checkpoint only what a process needs", RunFetch},
    Command{"inspect", "says what a checkpoint is, what can serve it, and how much memory it takes",
            RunInspect},
    Command{"matrix", "prints which families, formats and methods are supported (docs/)",
            RunMatrix},
    Command{"pack", "packs a checkpoint's experts into the files that workers map", RunPack},
    Command{"plan", "decides which worker holds which experts, and how often", RunPlan},
};

void PrintUsage(std::ostream& out) {
  out << "usage: atelier COMMAND [flags]\n\n";
  for (const Command& command : kCommands) {
    out << "  " << command.name << std::string(10 - command.name.size(), ' ') << command.summary
        << "\n";
  }
  out << "\nCOMMAND --help explains a command. Exit status of all: 0 done, 1 it failed or found "
         "errors, 2 bad usage.\n";
}

int Run(int argc, const char* const* argv) {
  const absl::string_view name = argc > 1 ? argv[1] : "";
  if (name == "--help" || name == "-h" || name == "help") {
    PrintUsage(std::cout);
    return 0;
  }
  if (name == "--version") {
    std::cout << "atelier " << Version() << "\n";
    return 0;
  }
  for (const Command& command : kCommands) {
    if (command.name == name) return command.run(argc - 1, argv + 1);
  }
  if (!name.empty()) std::cerr << "atelier: there is no command " << Quoted(name) << "\n";
  PrintUsage(std::cerr);
  return 2;
}

}  // namespace
}  // namespace atelier

int main(int argc, char** argv) {
  return atelier::StatusOfOutput("atelier", atelier::Run(argc, argv));
}
