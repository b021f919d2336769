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

// Elements that are converted at a time; whole blocks of every type.
constexpr size_t kChunk = size_t{1} << 16;

std::vector<float> FloatsOf(const TensorView& tensor) {
  std::vector<float> values(NumElements(tensor));
  ReadFloats(tensor, 0, values.size(), values.data());
  return values;
}

std::vector<BFloat16> BFloat16sOf(const TensorView& tensor) {
  std::vector<BFloat16> values(NumElements(tensor));
  std::vector<float> chunk(std::min(kChunk, values.size()));
  for (size_t begin = 0; begin < values.size(); begin += kChunk) {
    const size_t count = std::min(kChunk, values.size() - begin);
    ReadFloats(tensor, begin, count, chunk.data());
    std::transform(chunk.begin(), chunk.begin() + static_cast<std::ptrdiff_t>(count),
                   values.begin() + static_cast<std::ptrdiff_t>(begin), ToBFloat16);
  }
  return values;
}

// Whether the device can take the tensors as they lie in the files.
bool AreFloatsOfOneType(const std::vector<TensorView>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const TensorView& tensor) {
    return tensor.IsFloats() && tensor.dtype == tensors[0].dtype;
  });
}

}  // namespace

absl::StatusOr<TensorView> TensorLoader::Require(const std::string& name,
                                                 const std::vector<int64_t>& shape) {
  ATELIER_ASSIGN_OR_RETURN(TensorView tensor, checkpoint_.RequireReadable(name, shape));
  ATELIER_RETURN_IF_ERROR(checkpoint_.RequireFetched(tensor.data, "--role=frontend"));
  bytes_read_ += static_cast<int64_t>(tensor.data.size());
  return tensor;
}

absl::StatusOr<std::unique_ptr<DeviceBuffer>> TensorLoader::Upload(const void* data, size_t bytes) {
  ATELIER_ASSIGN_OR_RETURN(std::unique_ptr<DeviceBuffer> buffer,
                           device_.Allocate(MemoryKind::kDevice, bytes));
  stream_->Copy(buffer->data(), data, bytes);
  ATELIER_RETURN_IF_ERROR(stream_->Synchronize());
  return buffer;
}

absl::StatusOr<std::unique_ptr<DeviceBuffer>> TensorLoader::Floats(const std::string& name,
                                                                   std::vector<int64_t> shape) {
  ATELIER_ASSIGN_OR_RETURN(const TensorView tensor, Require(name, shape));
  const std::vector<float> values = FloatsOf(tensor);
  ReleasePages(tensor.data);
  return Upload(values.data(), values.size() * sizeof(float));
}

absl::StatusOr<std::unique_ptr<DeviceBuffer>> TensorLoader::StackedFloats(
    const std::vector<std::string>& names, const std::vector<int>& sizes) {
  std::vector<float> values;
  for (size_t i = 0; i < names.size(); ++i) {
    ATELIER_ASSIGN_OR_RETURN(const TensorView tensor, Require(names[i], {sizes[i]}));
    const std::vector<float> part = FloatsOf(tensor);
    ReleasePages(tensor.data);
    values.insert(values.end(), part.begin(), part.end());
  }
  return Upload(values.data(), values.size() * sizeof(float));
}

absl::StatusOr<std::unique_ptr<DeviceBuffer>> TensorLoader::BFloat16Rows(const std::string& name,
                                                                         int rows, int columns) {
  ATELIER_ASSIGN_OR_RETURN(const TensorView tensor, Require(name, {rows, columns}));
  if (tensor.IsFloats() && tensor.dtype == DType::kBF16) {
    auto uploaded = Upload(tensor.data.data(), tensor.data.size());
    ReleasePages(tensor.data);
    return uploaded;
  }
  const std::vector<BFloat16> values = BFloat16sOf(tensor);
  ReleasePages(tensor.data);
  return Upload(values.data(), values.size() * sizeof(BFloat16));
}

absl::StatusOr<std::unique_ptr<DeviceMatrix>> TensorLoader::Matrix(
    const std::vector<std::string>& names, const std::vector<int>& rows, int columns) {
  std::vector<TensorView> tensors;
  for (size_t i = 0; i < names.size(); ++i) {
    ATELIER_ASSIGN_OR_RETURN(TensorView tensor, Require(names[i], {rows[i], columns}));
    tensors.push_back(std::move(tensor));
  }
  const bool as_they_are = AreFloatsOfOneType(tensors);
  std::vector<std::vector<BFloat16>> converted(tensors.size());
  std::vector<HostMatrix> parts;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!as_they_are) converted[i] = BFloat16sOf(tensors[i]);
    const void* data = as_they_are ? static_cast<const void*>(tensors[i].data.data())
                                   : static_cast<const void*>(converted[i].data());
    parts.push_back({as_they_are ? tensors[0].dtype : DType::kBF16, data, rows[i], columns});
  }
  auto loaded = device_.LoadMatrix(parts);
  for (const TensorView& tensor : tensors) ReleasePages(tensor.data);
  return loaded;
}

}  // namespace atelier
