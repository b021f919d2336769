#include <iostream>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "libs/base/command_line.h"
#include "libs/numa/topology.h"
#include "tools/atelier/command.h"
#include "tools/atelier/findings.h"
#include "tools/atelier/machine_facts.h"

namespace atelier {
namespace {

struct DoctorOptions {
  bool json = false;
  absl::Duration measure = absl::Seconds(2);
  int64_t measure_bytes = int64_t{1} << 30;
};

FlagTable DoctorFlags(DoctorOptions* options) {
  return FlagTable(
      "usage: atelier doctor [flags]\n\n"
      "Looks at this machine as a host of expert workers: instruction sets and the permission for\n"
      "AMX, CPUs, NUMA nodes and memory policy, memory, huge pages, limits, the GPU's driver,\n"
      "settings of the kernel, and how fast memory is read. Run it where the worker will run: in\n"
      "the same container, as the same user. One line a topic, ok, warning or error, with what to\n"
      "do. Changes nothing.\n\n"
      "examples:\n"
      "  atelier doctor\n"
      "  atelier doctor --json | jq '.findings[] | select(.verdict != \"ok\")'\n\n"
      "exit status: 0 no errors (warnings may be), 1 errors, 2 bad usage.",
      {{"Measuring",
        {DurationFlag("measure", "How long to measure the memory; 0s leaves it out.",
                      &options->measure),
         BytesFlag("measure-memory",
                   "Memory to read meanwhile: several times the last-level cache.",
                   &options->measure_bytes)}},
       {"Output",
        {SwitchFlag("json", "For programs: {\"errors\", \"warnings\", \"findings\": [...]}.",
                    &options->json)}}});
}

Finding MeasuredFinding(const Topology& topology, const DoctorOptions& options) {
  const absl::StatusOr<ReadBandwidth> read =
      MeasureReadBandwidth(topology, options.measure, options.measure_bytes);
  if (read.ok()) return JudgeBandwidth(*read);
  return {"bandwidth", Verdict::kError, std::string(read.status().message()),
          "give --measure-memory less, or free memory"};
}

}  // namespace

int RunDoctor(int argc, const char* const* argv) {
  DoctorOptions options;
  const FlagTable flags = DoctorFlags(&options);
  if (const auto status = AnswerCommandLine("atelier doctor", flags, argc, argv, [&] {
        return options.measure_bytes > 0 || options.measure == absl::ZeroDuration()
                   ? absl::OkStatus()
                   : absl::InvalidArgumentError("--measure-memory=0: must be positive");
      })) {
    return *status;
  }
  const MachineFacts facts = GatherMachineFacts();
  std::vector<Finding> findings = Judge(facts);
  if (options.measure > absl::ZeroDuration()) {
    findings.push_back(MeasuredFinding(facts.topology, options));
  }
  std::cout << (options.json ? FindingsJson(findings) : FindingsText(findings));
  return Count(findings, Verdict::kError) > 0 ? 1 : 0;
}

}  // namespace atelier
