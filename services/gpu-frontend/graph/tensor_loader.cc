#include "services/gpu-frontend/graph/tensor_loader.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "libs/base/float16.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/mapped_file.h"
#include "libs/checkpoint/tensor_floats.h"

namespace atelier {
namespace {

std::vector<BFloat16> BFloat16sOf(const PublishedMatrix& matrix, int rows, int columns) {
  const auto width = static_cast<size_t>(columns);
  std::vector<BFloat16> values(static_cast<size_t>(rows) * width);
  std::vector<float> floats(width);
  for (int row = 0; row < rows; ++row) {
    ReadRow(matrix, row, columns, floats.data());
    std::transform(floats.begin(), floats.end(), values.data() + static_cast<size_t>(row) * width,
                   ToBFloat16);
  }
  return values;
}

// Whether the device can take the matrices as they lie in the files.
bool AreFloatsOfOneType(const std::vector<PublishedMatrix>& matrices) {
  return std::all_of(matrices.begin(), matrices.end(), [&](const PublishedMatrix& matrix) {
    return !matrix.quant && matrix.tensor.dtype == matrices[0].tensor.dtype;
  });
}

void ReleasePagesOf(const PublishedMatrix& matrix) {
  for (const MatrixBytes& bytes : matrix.bytes) ReleasePages(bytes.data);
}

}  // namespace

absl::Status TensorLoader::Count(absl::Span<const uint8_t> bytes, absl::string_view role_flags) {
  bytes_read_ += static_cast<int64_t>(bytes.size());
  return checkpoint_.RequireFetched(bytes, role_flags);
}

absl::StatusOr<PublishedMatrix> TensorLoader::RequireMatrix(const std::string& name, int rows,
                                                            int columns) {
  ATELIER_ASSIGN_OR_RETURN(PublishedMatrix matrix, FindMatrix(checkpoint_, name, rows, columns));
  for (const MatrixBytes& bytes : matrix.bytes) ATELIER_RETURN_IF_ERROR(Count(bytes.data));
  return matrix;
}

absl::Status TensorLoader::AppendFloats(const std::string& name, int size,
                                        std::vector<float>& values) {
  ATELIER_ASSIGN_OR_RETURN(const TensorView tensor, checkpoint_.RequireReadable(name, {size}));
  ATELIER_RETURN_IF_ERROR(Count(tensor.data));
  const size_t begin = values.size();
  values.resize(begin + static_cast<size_t>(size));
  ReadFloats(tensor, 0, static_cast<size_t>(size), values.data() + begin);
  ReleasePages(tensor.data);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DeviceBuffer>> TensorLoader::Upload(const void* data, size_t bytes) {
  ATELIER_ASSIGN_OR_RETURN(std::unique_ptr<DeviceBuffer> buffer,
                           device_.Allocate(MemoryKind::kDevice, bytes));
  stream_->Copy(buffer->data(), data, bytes);
  ATELIER_RETURN_IF_ERROR(stream_->Synchronize());
  return buffer;
}

absl::StatusOr<std::unique_ptr<DeviceBuffer>> TensorLoader::Floats(const std::string& name,
                                                                   int size) {
  return StackedFloats({name}, {size});
}

absl::StatusOr<std::unique_ptr<DeviceBuffer>> TensorLoader::StackedFloats(
    const std::vector<std::string>& names, const std::vector<int>& sizes) {
  std::vector<float> values;
  for (size_t i = 0; i < names.size(); ++i) {
    ATELIER_RETURN_IF_ERROR(AppendFloats(names[i], sizes[i], values));
  }
  return Upload(values.data(), values.size() * sizeof(float));
}

absl::StatusOr<std::unique_ptr<DeviceBuffer>> TensorLoader::FloatRows(const std::string& name,
                                                                      int rows, int columns) {
  ATELIER_ASSIGN_OR_RETURN(const PublishedMatrix matrix, RequireMatrix(name, rows, columns));
  const auto width = static_cast<size_t>(columns);
  std::vector<float> values(static_cast<size_t>(rows) * width);
  for (int row = 0; row < rows; ++row) {
    ReadRow(matrix, row, columns, values.data() + static_cast<size_t>(row) * width);
  }
  ReleasePagesOf(matrix);
  return Upload(values.data(), values.size() * sizeof(float));
}

absl::StatusOr<std::unique_ptr<DeviceBuffer>> TensorLoader::BFloat16Rows(const std::string& name,
                                                                         int rows, int columns) {
  ATELIER_ASSIGN_OR_RETURN(const PublishedMatrix matrix, RequireMatrix(name, rows, columns));
  const TensorView& tensor = matrix.tensor;
  if (!matrix.quant && tensor.dtype == DType::kBF16) {
    auto uploaded = Upload(tensor.data.data(), tensor.data.size());
    ReleasePagesOf(matrix);
    return uploaded;
  }
  const std::vector<BFloat16> values = BFloat16sOf(matrix, rows, columns);
  ReleasePagesOf(matrix);
  return Upload(values.data(), values.size() * sizeof(BFloat16));
}

absl::StatusOr<std::unique_ptr<DeviceMatrix>> TensorLoader::Matrix(
    const std::vector<std::string>& names, const std::vector<int>& rows, int columns) {
  std::vector<PublishedMatrix> matrices;
  for (size_t i = 0; i < names.size(); ++i) {
    ATELIER_ASSIGN_OR_RETURN(matrices.emplace_back(), RequireMatrix(names[i], rows[i], columns));
  }
  return Load(matrices, rows, columns);
}

absl::StatusOr<std::pair<std::unique_ptr<DeviceMatrix>, std::unique_ptr<DeviceMatrix>>>
TensorLoader::Expert(int layer, int expert) {
  const int hidden = checkpoint_.config().hidden_size;
  const int width = checkpoint_.config().moe.intermediate_size;
  ATELIER_ASSIGN_OR_RETURN(const ExpertTensors tensors, FindExpert(checkpoint_, layer, expert));
  for (const PublishedMatrix* matrix : {&tensors.gate, &tensors.up, &tensors.down}) {
    for (const MatrixBytes& bytes : matrix->bytes) {
      ATELIER_RETURN_IF_ERROR(Count(bytes.data, "--role=all"));
    }
  }
  ATELIER_ASSIGN_OR_RETURN(std::unique_ptr<DeviceMatrix> gate_up,
                           Load({tensors.gate, tensors.up}, {width, width}, hidden));
  ATELIER_ASSIGN_OR_RETURN(std::unique_ptr<DeviceMatrix> down,
                           Load({tensors.down}, {hidden}, width));
  return std::make_pair(std::move(gate_up), std::move(down));
}

absl::StatusOr<std::unique_ptr<DeviceMatrix>> TensorLoader::Load(
    const std::vector<PublishedMatrix>& matrices, const std::vector<int>& rows, int columns) {
  const bool as_they_are = AreFloatsOfOneType(matrices);
  std::vector<std::vector<BFloat16>> converted(matrices.size());
  std::vector<HostMatrix> parts;
  for (size_t i = 0; i < matrices.size(); ++i) {
    if (!as_they_are) converted[i] = BFloat16sOf(matrices[i], rows[i], columns);
    const void* data = as_they_are ? static_cast<const void*>(matrices[i].tensor.data.data())
                                   : static_cast<const void*>(converted[i].data());
    parts.push_back(
        {as_they_are ? matrices[0].tensor.dtype : DType::kBF16, data, rows[i], columns});
  }
  auto loaded = device_.LoadMatrix(parts);
  for (const PublishedMatrix& matrix : matrices) ReleasePagesOf(matrix);
  return loaded;
}

}  // namespace atelier
