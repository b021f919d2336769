#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "libs/base/flag_table.h"
#include "tests/e2e/faults/fault_menu.h"

namespace atelier::faults {

struct Options {
  int kills = 50;
  int64_t seed = 1;
  std::string only;  // a fault's name; empty = all
  bool list = false;
  int slices = 2;
  int replicas = 3;
  int frontends = 2;
  int clients = 3;  // per frontend
  std::string method = "mixed";
  std::string model;     // empty = a small random one
  std::string run_dir;   // empty = a folder that goes with the run
  std::string programs;  // folder of the programs; empty = that of this one

  absl::Status Validate() const;
};

FlagTable Flags(Options* options);

}  // namespace atelier::faults
