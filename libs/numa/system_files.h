#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace atelier {

// Small files of /proc and /sys, below a root that tests can invent.

// nullopt when the file cannot be read. At most 1 MiB is read.
std::optional<std::string> ReadSystemFile(const std::string& path);

// "0-3,8\n" as the kernel writes sets of CPUs or nodes: ascending, without duplicates. An empty
// text is the empty set; nullopt for anything else, and for numbers of 65536 or more.
std::optional<std::vector<int>> ParseCpuList(absl::string_view text);

// The number after `key` ("MemTotal:") in a file of lines `… key  123 kB`, in bytes where the unit
// is kB. nullopt when the key is absent or its value no number.
std::optional<int64_t> FindCounter(absl::string_view text, absl::string_view key);

}  // namespace atelier
