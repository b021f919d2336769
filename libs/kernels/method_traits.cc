#include "libs/kernels/gemm/block_layout-inl.h"
#include "libs/kernels/pack.h"

namespace atelier {

const BlockFormat* BlockFormatOf(Method method) {
  switch (method) {
    case Method::kINT4G32:
      return &kInt4G32Format;
    case Method::kINT4G64:
      return &kInt4G64Format;
    case Method::kINT4G128:
      return &kInt4G128Format;
    case Method::kINT4G32Z:
      return &kInt4G32ZFormat;
    case Method::kINT4G64Z:
      return &kInt4G64ZFormat;
    case Method::kINT4G128Z:
      return &kInt4G128ZFormat;
    case Method::kMXFP4:
      return &kMxFp4Format;
    case Method::kQ8_0:
      return &kQ8_0Format;
    case Method::kQ4_0:
      return &kQ4_0Format;
    case Method::kQ4_1:
      return &kQ4_1Format;
    case Method::kQ5_0:
      return &kQ5_0Format;
    case Method::kQ5_1:
      return &kQ5_1Format;
    case Method::kQ2_K:
      return &kQ2_KFormat;
    case Method::kQ3_K:
      return &kQ3_KFormat;
    case Method::kQ4_K:
      return &kQ4_KFormat;
    case Method::kQ5_K:
      return &kQ5_KFormat;
    case Method::kQ6_K:
      return &kQ6_KFormat;
    case Method::kIQ4_NL:
      return &kIq4NlFormat;
    case Method::kIQ4_XS:
      return &kIq4XsFormat;
    case Method::kBF16:
    case Method::kINT8:
    case Method::kFP8_BLOCK:
    case Method::kFP8_ROW:
    case Method::kMXFP8:
      return nullptr;
  }
  return nullptr;
}

bool IsFp8(Method method) {
  return method == Method::kFP8_BLOCK || method == Method::kFP8_ROW || method == Method::kMXFP8;
}

ActivationForm ActivationFormOf(Method method) {
  if (method == Method::kINT8) return ActivationForm::kInt8Row;
  return BlockFormatOf(method) == nullptr ? ActivationForm::kBf16 : ActivationForm::kInt8Blocks;
}

int KMultiple(Method method) {
  if (method == Method::kMXFP8) return 32;
  const BlockFormat* format = BlockFormatOf(method);
  if (format == nullptr) return 1;
  if (IsSuper(format->scale)) return kBlockK;
  return format->group < 32 ? 32 : format->group;
}

int KSliceMultiple(Method method) { return method == Method::kFP8_BLOCK ? 128 : KMultiple(method); }

}  // namespace atelier
