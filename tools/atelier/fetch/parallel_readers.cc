#include "tools/atelier/fetch/parallel_readers.h"

#include <algorithm>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

namespace atelier {

ParallelReaders::ParallelReaders(int jobs, const Connect& connect, const ReaderOptions& options)
    : jobs_(jobs), connect_(connect), options_(options), seed_(std::random_device{}()) {
  options_.stopped = [this, outer = options.stopped] {
    return stopped_.load() || (outer && outer());
  };
  if (!options_.now) options_.now = absl::Now;
  if (options_.sleep) return;
  // In short pieces, so that another thread's failure does not wait for the longest of them.
  options_.sleep = [this](absl::Duration duration) {
    constexpr absl::Duration kPiece = absl::Milliseconds(50);
    const absl::Time end = absl::Now() + duration;
    for (absl::Time now = absl::Now(); now < end && !options_.stopped(); now = absl::Now()) {
      absl::SleepFor(std::min(kPiece, end - now));
    }
  };
}

std::unique_ptr<RemoteReader> ParallelReaders::NewReader() {
  return std::make_unique<RemoteReader>(connect_(), options_, seed_++);
}

absl::Status ParallelReaders::Run(size_t count,
                                  const std::function<absl::Status(RemoteReader&, size_t)>& task) {
  std::atomic<size_t> next = 0;
  absl::Mutex mutex;
  absl::Status first;  // guarded by mutex
  const auto work = [&](RemoteReader& reader) {
    for (size_t i = next++; i < count && !stopped_.load(); i = next++) {
      absl::Status status = task(reader, i);
      if (status.ok()) continue;
      const absl::MutexLock lock(&mutex);
      // What the first failure stopped is no news.
      first.Update(std::move(status));
      stopped_.store(true);
    }
  };
  std::vector<std::unique_ptr<RemoteReader>> readers;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < std::min(count, static_cast<size_t>(jobs_)); ++i) {
    readers.push_back(NewReader());
    threads.emplace_back([&work, reader = readers.back().get()] { work(*reader); });
  }
  for (std::thread& thread : threads) thread.join();
  return first;
}

}  // namespace atelier
