#include "tools/atelier/terminal_progress.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <string>

#include "absl/strings/str_format.h"
#include "libs/base/flag_table.h"

namespace atelier {
namespace {

constexpr absl::Duration kInterval = absl::Milliseconds(100);

}  // namespace

TerminalProgress::TerminalProgress(int64_t total, Clock& clock)
    : shown_(::isatty(STDERR_FILENO) != 0), total_(total), clock_(clock), start_(clock.Now()) {}

TerminalProgress::~TerminalProgress() { Clear(); }

void TerminalProgress::Add(int64_t bytes, bool found) {
  const absl::MutexLock lock(&mutex_);
  done_ = std::min(done_ + bytes, total_);
  if (!found) made_ += bytes;
  if (clock_.Now() - printed_ >= kInterval) Print();
}

void TerminalProgress::Show() {
  const absl::MutexLock lock(&mutex_);
  Print();
}

void TerminalProgress::Print() {
  if (!shown_) return;
  printed_ = clock_.Now();
  const double seconds = std::max(absl::ToDoubleSeconds(printed_ - start_), 1e-3);
  const double rate = static_cast<double>(made_) / seconds;
  const std::string left =
      rate > 0 ? absl::StrFormat(", %s/s, %.0f s left", FormatBytes(static_cast<int64_t>(rate)),
                                 static_cast<double>(total_ - done_) / rate)
               : std::string();
  std::cerr << absl::StrFormat("\r\033[K%3d %% of %s%s", total_ > 0 ? done_ * 100 / total_ : 100,
                               FormatBytes(total_), left)
            << std::flush;
}

void TerminalProgress::Clear() {
  if (shown_) std::cerr << "\r\033[K" << std::flush;
}

}  // namespace atelier
