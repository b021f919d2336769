#include "services/gpu-frontend/graph/tensor_loader.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "libs/base/float16.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/float_element.h"

namespace atelier {
namespace {

size_t NumElements(const TensorView& tensor) {
  return tensor.data.size() / DTypeBytes(tensor.dtype);
}

void AppendFloats(const TensorView& tensor, std::vector<float>& out) {
  for (size_t i = 0; i < NumElements(tensor); ++i)
    out.push_back(FloatElement(tensor.dtype, tensor.data.data(), i));
}

}  // namespace

absl::StatusOr<TensorView> TensorLoader::Require(const std::string& name,
                                                 const std::vector<int64_t>& shape) {
  ATELIER_ASSIGN_OR_RETURN(TensorView tensor, checkpoint_.Require(name, shape));
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
  std::vector<float> values;
  values.reserve(NumElements(tensor));
  AppendFloats(tensor, values);
  return Upload(values.data(), values.size() * sizeof(float));
}

absl::StatusOr<std::unique_ptr<DeviceBuffer>> TensorLoader::StackedFloats(
    const std::vector<std::string>& names, const std::vector<int>& sizes) {
  std::vector<float> values;
  for (size_t i = 0; i < names.size(); ++i) {
    ATELIER_ASSIGN_OR_RETURN(const TensorView tensor, Require(names[i], {sizes[i]}));
    AppendFloats(tensor, values);
  }
  return Upload(values.data(), values.size() * sizeof(float));
}

absl::StatusOr<std::unique_ptr<DeviceBuffer>> TensorLoader::BFloat16Rows(const std::string& name,
                                                                         int rows, int columns) {
  ATELIER_ASSIGN_OR_RETURN(const TensorView tensor, Require(name, {rows, columns}));
  if (tensor.dtype == DType::kBF16) return Upload(tensor.data.data(), tensor.data.size());
  std::vector<BFloat16> values(NumElements(tensor));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = ToBFloat16(FloatElement(tensor.dtype, tensor.data.data(), i));
  return Upload(values.data(), values.size() * sizeof(BFloat16));
}

absl::StatusOr<std::unique_ptr<DeviceMatrix>> TensorLoader::Matrix(
    const std::vector<std::string>& names, const std::vector<int>& rows, int columns) {
  std::vector<HostMatrix> parts;
  for (size_t i = 0; i < names.size(); ++i) {
    ATELIER_ASSIGN_OR_RETURN(const TensorView tensor, Require(names[i], {rows[i], columns}));
    if (!parts.empty() && parts[0].dtype != tensor.dtype) {
      return absl::InvalidArgumentError(
          absl::StrCat(tensor.file, ": tensor ", names[i], " is ", DTypeName(tensor.dtype), " but ",
                       names[0], " is ", DTypeName(parts[0].dtype),
                       "; matrices that are multiplied together must have one dtype"));
    }
    parts.push_back({tensor.dtype, tensor.data.data(), rows[i], columns});
  }
  return device_.LoadMatrix(parts);
}

}  // namespace atelier
