#include "libs/device/cpu/cpu_matrix.h"

#include <cstring>
#include <vector>

#include "libs/base/check.h"
#include "libs/base/status_macros.h"

namespace atelier {
namespace {

constexpr int64_t kPanelsPerPiece = 8;

// One contiguous bf16, fp16 or fp32 matrix out of several of one dtype: panels of the packed layout
// may straddle the parts.
std::vector<uint8_t> Stack(absl::Span<const HostMatrix> parts) {
  std::vector<uint8_t> stacked;
  for (const HostMatrix& part : parts) {
    ATELIER_CHECK(part.columns == parts[0].columns && part.dtype == parts[0].dtype);
    const size_t bytes =
        static_cast<size_t>(part.rows) * static_cast<size_t>(part.columns) * DTypeBytes(part.dtype);
    const size_t begin = stacked.size();
    stacked.resize(begin + bytes);
    std::memcpy(stacked.data() + begin, part.data, bytes);
  }
  return stacked;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuMatrix>> CpuMatrix::Pack(absl::Span<const HostMatrix> parts,
                                                           const CpuThreads& threads) {
  ATELIER_CHECK(!parts.empty());
  int rows = 0;
  for (const HostMatrix& part : parts) rows += part.rows;
  const int columns = parts[0].columns;
  ATELIER_ASSIGN_OR_RETURN(CpuMemory memory,
                           CpuMemory::Allocate(PackedMatrixBytes(Method::kBF16, rows, columns)));
  std::vector<uint8_t> stacked;
  WeightSource source{parts[0].dtype, parts[0].data, static_cast<size_t>(columns)};
  if (parts.size() > 1) {
    stacked = Stack(parts);
    source.data = stacked.data();
  }
  const PackedMatrix packed = PackedMatrixAt(Method::kBF16, rows, columns, memory.data());
  threads.ParallelFor(packed.num_panels(), kPanelsPerPiece, [&](int64_t begin, int64_t end) {
    PackMatrix(source, Method::kBF16, rows, columns, static_cast<int>(begin), static_cast<int>(end),
               memory.data());
  });
  return std::unique_ptr<CpuMatrix>(new CpuMatrix(std::move(memory), packed));
}

}  // namespace atelier
