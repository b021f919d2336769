#include "bench/support/machine.h"

#include <algorithm>
#include <atomic>

#include "bench/support/peak_loops.h"
#include "bench/support/samples.h"

namespace atelier {
namespace {

constexpr Effort kEffort{15, 0.4};
constexpr size_t kStreamBytes = size_t{8} << 20;  // a thread's next piece of the stream
// About 0.3 ms at one step of 24 chains per 24 cycles: short enough to fall between a neighbour's
// turns on a busy machine.
constexpr int64_t kPeakIterations = 40000;

using ReadStream = uint32_t (*)(const uint8_t*, size_t);

ReadStream BestReadStream(const CpuFeatures& features) {
  if (features.avx512) return ReadStreamAvx512;
  return features.avx2_fma ? ReadStreamAvx2 : ReadStreamScalar;
}

double MeasureRead(ReadStream read, NodeArena& arena, NodeMemory& memory) {
  const int64_t pieces = static_cast<int64_t>(memory.size() / kStreamBytes);
  std::atomic<uint32_t> sink{0};
  const std::vector<double> seconds = TimeCalls(kEffort, [&](int) {
    arena.ParallelFor(pieces, [&](int64_t i) {
      sink += read(memory.data() + static_cast<size_t>(i) * kStreamBytes, kStreamBytes);
    });
  });
  return static_cast<double>(pieces) * static_cast<double>(kStreamBytes) / Least(seconds) * 1e-9;
}

double MeasurePeak(const PeakLoop& loop, NodeArena& arena) {
  if (loop.run == nullptr) return 0;
  std::atomic<uint32_t> sink{0};
  const int64_t pieces = arena.num_threads() * int64_t{2};
  const std::vector<double> seconds = TimeCalls(kEffort, [&](int) {
    arena.ParallelFor(pieces, [&](int64_t) { sink += loop.run(kPeakIterations); });
  });
  const double ops = loop.ops_per_iteration * kPeakIterations * static_cast<double>(pieces);
  return ops / Least(seconds) * 1e-9;
}

struct NamedLoops {
  const char* isa;
  bool supported;
  PeakLoops (*loops)();
};

std::vector<NamedLoops> LoopsOf(const CpuFeatures& features) {
  return {{"scalar", true, PeakLoopsScalar},
          {"avx2", features.avx2_fma, PeakLoopsAvx2},
          {"avx512", features.avx512, PeakLoopsAvx512},
          {"avx512vnni", features.avx512_vnni, PeakLoopsAvx512Vnni},
          {"avx512bf16", features.avx512_bf16, PeakLoopsAvx512Bf16},
          {"amx", features.amx_int8 && features.amx_bf16, PeakLoopsAmx}};
}

double Of(const IsaPeak& peak, Arithmetic arithmetic) {
  return arithmetic == Arithmetic::kInt8 ? peak.int8 : peak.bf16;
}

}  // namespace

double MachineLimits::Peak(absl::string_view isa, Arithmetic arithmetic) const {
  double best = 0;
  for (const IsaPeak& peak : peaks) {
    const double value = Of(peak, arithmetic);
    if (peak.isa == isa && value > 0) return value;
    best = std::max(best, value);
  }
  return best;
}

MachineLimits MeasureMachine(const CpuFeatures& features, NodeArena& arena, NodeMemory& memory) {
  MachineLimits limits;
  limits.threads = arena.num_threads();
  limits.read_gb_per_s = MeasureRead(BestReadStream(features), arena, memory);
  for (const NamedLoops& named : LoopsOf(features)) {
    if (!named.supported) continue;
    const PeakLoops loops = named.loops();
    limits.peaks.push_back(
        {named.isa, MeasurePeak(loops.int8, arena), MeasurePeak(loops.bf16, arena)});
  }
  return limits;
}

}  // namespace atelier
