#include "libs/base/progress.h"

#include <algorithm>
#include <utility>

namespace atelier {

Progress::Progress(const Logger& logger, Clock& clock, std::string event, std::string unit,
                   int64_t total, absl::Duration interval)
    : logger_(logger),
      clock_(clock),
      event_(std::move(event)),
      unit_(std::move(unit)),
      total_(total),
      interval_(interval),
      start_(clock.Now()),
      last_report_(start_) {}

void Progress::Add(int64_t done) {
  done_ += done;
  const absl::Time now = clock_.Now();
  if (done_ < total_ && now - last_report_ < interval_) return;
  Report(now);
}

void Progress::Report(absl::Time now) {
  last_report_ = now;
  const double seconds = std::max(absl::ToDoubleSeconds(now - start_), 1e-9);
  const double rate = static_cast<double>(done_) / seconds;
  const double left = rate > 0 ? static_cast<double>(total_ - done_) / rate : 0;
  const int64_t percent = total_ > 0 ? done_ * 100 / total_ : 100;
  logger_.Info(event_,
               {Kv("unit", unit_), Kv("done", done_), Kv("total", total_), Kv("percent", percent),
                Kv("per_second", static_cast<int64_t>(rate)),
                Kv("elapsed_s",
                   absl::StrCat(static_cast<double>(static_cast<int64_t>(seconds * 10)) / 10.0)),
                Kv("eta_s", static_cast<int64_t>(left + 0.5))});
}

}  // namespace atelier
