// How fast one expert is on each instruction set, beside the read bandwidth of the machine.
//   bench_expert_ffn [THREADS [H I]]
// Every thread takes its own experts out of a pool larger than the caches, as decoding does.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "libs/kernels/aligned_buffer.h"
#include "libs/kernels/expert_ffn.h"
#include "libs/kernels/kernel_table.h"

namespace atelier {
namespace {

constexpr size_t kPoolBytes = size_t{384} << 20;
constexpr int kMinCalls = 9;
constexpr double kMinSeconds = 0.4;

struct Shape {
  int hidden;
  int inner;
  double weights() const { return 3.0 * hidden * inner; }
};

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

// Seconds of each call of body(thread, call), made by all threads until each has had its share.
std::vector<double> TimeCalls(int num_threads, const std::function<void(int, int)>& body) {
  std::vector<std::vector<double>> times(static_cast<size_t>(num_threads));
  std::vector<std::thread> threads;
  for (int t = 0; t < num_threads; ++t) {
    threads.emplace_back([t, &body, &mine = times[static_cast<size_t>(t)]] {
      body(t, 0);
      const double end = Now() + kMinSeconds;
      for (int call = 1; call <= kMinCalls || Now() < end; ++call) {
        const double begin = Now();
        body(t, call);
        mine.push_back(Now() - begin);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<double> all;
  for (const auto& mine : times) all.insert(all.end(), mine.begin(), mine.end());
  return all;
}

// Experts that share nothing, enough of them to leave the caches.
class ExpertPool {
 public:
  ExpertPool(Method method, Shape shape) {
    const size_t inner_bytes = PackedMatrixBytes(method, shape.inner, shape.hidden);
    const size_t down_bytes = PackedMatrixBytes(method, shape.hidden, shape.inner);
    const size_t bytes = 2 * inner_bytes + down_bytes;
    const size_t count = std::max<size_t>(4, kPoolBytes / bytes);
    uint8_t* at = memory_.Reserve(count * bytes);
    std::vector<float> values(static_cast<size_t>(shape.weights() / 3));
    std::mt19937 generator(1);
    for (float& value : values) value = static_cast<float>(generator() % 2001) / 1e4f - 0.1f;
    const auto pack = [&](int n, int k, uint8_t* block) {
      const WeightSource source{DType::kF32, values.data(), static_cast<size_t>(k)};
      PackMatrix(source, method, n, k, 0, (n + kPanelWidth - 1) / kPanelWidth, block);
      return PackedMatrixAt(method, n, k, block);
    };
    for (size_t i = 0; i < count; ++i, at += bytes) {
      if (i > 0) std::memcpy(at, memory_.data(), bytes);
      const auto view = [&](int n, int k, size_t offset) {
        return i == 0 ? pack(n, k, at + offset) : PackedMatrixAt(method, n, k, at + offset);
      };
      ExpertView expert;
      expert.gate = view(shape.inner, shape.hidden, 0);
      expert.up = view(shape.inner, shape.hidden, inner_bytes);
      expert.down = view(shape.hidden, shape.inner, 2 * inner_bytes);
      experts_.push_back(expert);
    }
  }
  const ExpertView& expert(size_t i) const { return experts_[i % experts_.size()]; }
  size_t size() const { return experts_.size(); }

 private:
  AlignedBuffer<uint8_t> memory_;
  std::vector<ExpertView> experts_;
};

struct Case {
  const KernelEntry& entry;
  const ExpertPool& pool;
  Shape shape;
  int rows;
  int num_threads;
};

void Report(const Case& c) {
  const Method method = c.entry.method;
  const size_t rows = static_cast<size_t>(c.rows),
               stride = ActivationRowBytes(method, c.shape.hidden);
  const std::vector<float> input(rows * static_cast<size_t>(c.shape.hidden), 0.5f);
  AlignedBuffer<uint8_t> prepared;
  AlignedBuffer<float> scales;
  PrepareRows(method, input.data(), static_cast<size_t>(c.shape.hidden), c.rows, c.shape.hidden,
              prepared.Reserve(rows * stride), scales.Reserve(rows));
  const size_t width = (static_cast<size_t>(c.shape.hidden) + 15) / 16 * 16;
  std::vector<std::vector<float>> out(static_cast<size_t>(c.num_threads),
                                      std::vector<float>(rows * width));
  const KernelTable table = KernelTable::ForEntry(c.entry);
  const size_t share = c.pool.size() / static_cast<size_t>(c.num_threads);
  const double seconds = Median(TimeCalls(c.num_threads, [&](int thread, int call) {
    const size_t t = static_cast<size_t>(thread);
    const ActivationRows view{prepared.data(), stride, scales.data(), c.rows};
    RunExpert(table, c.pool.expert(t * share + static_cast<size_t>(call) % share), view,
              out[t].data(), width);
  }));
  const double bytes = c.shape.weights() * (method == Method::kBF16 ? 2 : 1);
  std::printf("%-5s %-11s %5d %10.1f %8.2f %9.1f\n", std::string(MethodName(method)).c_str(),
              c.entry.isa, c.rows, seconds * 1e6, c.num_threads * bytes / seconds * 1e-9,
              c.num_threads * 2 * c.shape.weights() * c.rows / seconds * 1e-9);
}

// One sequential stream per thread, with plain loads.
void ReportReadBandwidth(int num_threads) {
  const size_t words = kPoolBytes / sizeof(uint64_t);
  const std::vector<uint64_t> memory(words, 1);
  const size_t share = words / static_cast<size_t>(num_threads) / 4 * 4;
  std::vector<uint64_t> sinks(static_cast<size_t>(num_threads));
  const double seconds = Median(TimeCalls(num_threads, [&](int thread, int) {
    const uint64_t* at = memory.data() + static_cast<size_t>(thread) * share;
    uint64_t sums[4] = {};
    for (size_t i = 0; i < share; i += 4) {
      for (size_t j = 0; j < 4; ++j) sums[j] += at[i + j];
    }
    sinks[static_cast<size_t>(thread)] = sums[0] + sums[1] + sums[2] + sums[3];
  }));
  std::printf("memory read: %.1f GB/s\n",
              num_threads * static_cast<double>(share * sizeof(uint64_t)) / seconds * 1e-9);
}

int Run(int num_threads, Shape shape) {
  std::printf("expert FFN H=%d I=%d, %d thread(s), medians\n", shape.hidden, shape.inner,
              num_threads);
  ReportReadBandwidth(num_threads);
  std::printf("%-5s %-11s %5s %10s %8s %9s\n", "", "isa", "rows", "us", "GB/s", "GOP/s");
  for (Method method : {Method::kBF16, Method::kINT8}) {
    const ExpertPool pool(method, shape);
    for (const KernelEntry& entry : KernelTable::Candidates()) {
      if (entry.method != method || !entry.supported(CpuFeatures::Detect())) continue;
      for (int rows : {1, 4, 16, 64, 256}) Report({entry, pool, shape, rows, num_threads});
    }
  }
  return 0;
}

}  // namespace
}  // namespace atelier

int main(int argc, char** argv) {
  const int num_threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const atelier::Shape shape =
      argc > 3 ? atelier::Shape{std::atoi(argv[2]), std::atoi(argv[3])} : atelier::Shape{2048, 768};
  if (num_threads < 1 || shape.hidden < 1 || shape.inner < 1) {
    std::fprintf(stderr, "usage: bench_expert_ffn [THREADS [HIDDEN INTERMEDIATE]]\n");
    return 2;
  }
  return atelier::Run(num_threads, shape);
}
