#include "libs/numa/thread_pinning.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace atelier {

absl::Status RestrictThread(const std::vector<int>& cpus) {
  const size_t max_cpus = static_cast<size_t>(*std::max_element(cpus.begin(), cpus.end())) + 1;
  cpu_set_t* const mask = CPU_ALLOC(max_cpus);
  const size_t bytes = CPU_ALLOC_SIZE(max_cpus);
  CPU_ZERO_S(bytes, mask);
  for (const int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), bytes, mask);
  const int result = ::sched_setaffinity(0, bytes, mask);
  const int error = errno;
  CPU_FREE(mask);
  if (result == 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("sched_setaffinity to CPU ", cpus.front(), ": ", std::strerror(error)));
}

}  // namespace atelier
