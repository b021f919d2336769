#include "libs/checkpoint/quant_matrix.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "libs/base/checked_math.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/fp8_source.h"
#include "libs/checkpoint/int4_source.h"
#include "libs/checkpoint/quoted_name.h"

namespace atelier {
namespace {

using Shape = std::vector<int64_t>;

constexpr int kNibblesPerWord = 8;
constexpr int kMxGroup = 32;

absl::Status Refuse(const TensorView& tensor, absl::string_view what,
                    absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  return absl::Status(code,
                      absl::StrCat(tensor.file, ": tensor ", QuotedName(tensor.name), ": ", what));
}

absl::StatusOr<TensorView> RequireAs(const Checkpoint& checkpoint, const std::string& name,
                                     const Shape& shape, std::initializer_list<DType> dtypes) {
  ATELIER_ASSIGN_OR_RETURN(TensorView tensor, checkpoint.Find(name));
  if (tensor.shape != shape) {
    return Refuse(tensor,
                  absl::StrCat("shape [", absl::StrJoin(tensor.shape, ", "),
                               "], but config.json promises [", absl::StrJoin(shape, ", "), "]"));
  }
  if (std::find(dtypes.begin(), dtypes.end(), tensor.dtype) != dtypes.end()) return tensor;
  const auto name_of = [](std::string* out, DType dtype) { out->append(DTypeName(dtype).data()); };
  return Refuse(tensor, absl::StrCat("dtype ", DTypeName(tensor.dtype), ", but ",
                                     absl::StrJoin(dtypes, " or ", name_of), " is needed"));
}

int32_t Word(const TensorView& tensor, size_t index) {
  int32_t word;
  std::memcpy(&word, tensor.data.data() + index * sizeof(word), sizeof(word));
  return word;
}

// Of a tensor whose dimension 0 goes along the matrix's rows, or columns.
MatrixBytes Lines(const TensorView& tensor, MatrixBytes::Lines lines, int64_t per_line = 1) {
  return {tensor.data, lines, static_cast<size_t>(tensor.shape[0]), static_cast<size_t>(per_line)};
}
MatrixBytes Rows(const TensorView& tensor, int64_t per_line = 1) {
  return Lines(tensor, MatrixBytes::Lines::kRows, per_line);
}
MatrixBytes Whole(const TensorView& tensor) { return {tensor.data}; }

// What the config promises of one matrix.
struct Wanted {
  const Checkpoint& checkpoint;
  std::string name;
  int64_t rows;
  int64_t columns;

  const QuantizationConfig& config() const { return checkpoint.config().quantization; }
  // Inputs that share a scale.
  int64_t group() const { return config().group_size == 0 ? columns : config().group_size; }
  int64_t groups() const { return columns / group(); }
  absl::StatusOr<TensorView> Require(absl::string_view suffix, const Shape& shape,
                                     std::initializer_list<DType> dtypes) const {
    return RequireAs(checkpoint, absl::StrCat(name, suffix), shape, dtypes);
  }
  bool Has(absl::string_view suffix) const {
    return checkpoint.Find(absl::StrCat(name, suffix)).ok();
  }
  // A tensor whose values are checked, if there is one.
  void AddIfThere(absl::string_view suffix, std::vector<MatrixBytes>& bytes) const {
    const absl::StatusOr<TensorView> tensor = checkpoint.Find(absl::StrCat(name, suffix));
    if (tensor.ok()) bytes.push_back(Whole(*tensor));
  }
};

// Whole groups, and whole words along the packed dimensions.
absl::Status CheckDivides(const Wanted& wanted, int64_t value, int64_t by, const char* what) {
  if (value % by == 0) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("matrix ", QuotedName(wanted.name), " [",
                                               wanted.rows, ", ", wanted.columns, "]: ", what,
                                               " must be a multiple of ", by));
}

// The kernels' group: the published one, or where a row has a single scale the largest that
// divides it.
absl::StatusOr<int64_t> MethodGroup(const Wanted& wanted) {
  for (const int64_t group : {128, 64, 32}) {
    const bool possible =
        wanted.config().group_size == 0 ? wanted.columns % group == 0 : wanted.group() == group;
    if (possible) return group;
  }
  return CheckDivides(wanted, wanted.columns, 32, "with one scale per row, columns");
}

Method Int4Method(int64_t group, bool symmetric) {
  if (group == 32) return symmetric ? Method::kINT4G32 : Method::kINT4G32Z;
  if (group == 64) return symmetric ? Method::kINT4G64 : Method::kINT4G64Z;
  return symmetric ? Method::kINT4G128 : Method::kINT4G128Z;
}

absl::StatusOr<PublishedMatrix> Int4Matrix(const Wanted& wanted, TensorView codes, DType scales,
                                           Int4Source::Layout layout,
                                           std::vector<MatrixBytes> bytes) {
  ATELIER_ASSIGN_OR_RETURN(const int64_t group, MethodGroup(wanted));
  layout.method_group = static_cast<size_t>(group);
  layout.scale_group = static_cast<size_t>(wanted.group());
  QuantMatrix matrix;
  matrix.method = Int4Method(group, layout.zeros.data == nullptr);
  matrix.bf16_scales = scales == DType::kBF16;
  matrix.source = std::make_shared<Int4Source>(layout);
  return PublishedMatrix{std::move(codes), std::move(matrix), std::move(bytes)};
}

// "<name>.weight_shape" repeats what config.json says.
absl::Status CheckWeightShape(const Wanted& wanted) {
  if (!wanted.Has(".weight_shape")) return absl::OkStatus();
  ATELIER_ASSIGN_OR_RETURN(const TensorView shape,
                           wanted.Require(".weight_shape", {2}, {DType::kI64, DType::kI32}));
  if (!wanted.checkpoint.IsFetched(shape.data)) return absl::OkStatus();
  int64_t dims[2];
  if (shape.dtype == DType::kI64) {
    std::memcpy(dims, shape.data.data(), sizeof(dims));
  } else {
    for (size_t i = 0; i < 2; ++i) dims[i] = Word(shape, i);
  }
  if (dims[0] == wanted.rows && dims[1] == wanted.columns) return absl::OkStatus();
  return Refuse(shape,
                absl::StrCat("holds [", dims[0], ", ", dims[1], "], but config.json promises [",
                             wanted.rows, ", ", wanted.columns, "]"));
}

absl::StatusOr<PublishedMatrix> FindPackedInt4(const Wanted& wanted) {
  const int64_t rows = wanted.rows, columns = wanted.columns;
  ATELIER_RETURN_IF_ERROR(CheckDivides(wanted, columns, kNibblesPerWord, "columns"));
  ATELIER_RETURN_IF_ERROR(CheckDivides(wanted, columns, wanted.group(), "columns"));
  ATELIER_ASSIGN_OR_RETURN(
      const TensorView codes,
      wanted.Require(".weight_packed", {rows, columns / kNibblesPerWord}, {DType::kI32}));
  ATELIER_ASSIGN_OR_RETURN(
      const TensorView scales,
      wanted.Require(".weight_scale", {rows, wanted.groups()}, {DType::kBF16, DType::kF16}));
  ATELIER_RETURN_IF_ERROR(CheckWeightShape(wanted));
  if (wanted.Has(".weight_g_idx")) {
    return Refuse(codes, "its weight_g_idx permutes the inputs (actorder), which is not supported",
                  absl::StatusCode::kUnimplemented);
  }
  Int4Source::Layout layout;
  layout.codes = {codes.data.data(), static_cast<size_t>(columns / kNibblesPerWord), 1, 0, 3};
  const auto groups = static_cast<size_t>(wanted.groups());
  layout.scales = {scales.data.data(), groups, 1};
  std::vector<MatrixBytes> bytes = {Rows(codes), Rows(scales)};
  wanted.AddIfThere(".weight_shape", bytes);
  if (!wanted.config().symmetric) {
    ATELIER_ASSIGN_OR_RETURN(
        const TensorView zeros,
        wanted.Require(".weight_zero_point",
                       {CeilDiv(rows, int64_t{kNibblesPerWord}), wanted.groups()}, {DType::kI32}));
    layout.zeros = {zeros.data.data(), groups, 1, 3, 0};
    bytes.push_back(Rows(zeros, kNibblesPerWord));
  }
  return Int4Matrix(wanted, codes, scales.dtype, layout, std::move(bytes));
}

// "sym" in the config: every zero point is the middle code.
absl::Status CheckSymmetric(const Wanted& wanted, const TensorView& zeros) {
  if (!wanted.checkpoint.IsFetched(zeros.data)) return absl::OkStatus();
  const int zero_offset = wanted.config().zero_offset;
  const uint32_t expected = 0x11111111u * static_cast<uint32_t>(8 - zero_offset);
  for (size_t i = 0; i < zeros.data.size() / sizeof(int32_t); ++i) {
    if (static_cast<uint32_t>(Word(zeros, i)) == expected) continue;
    return Refuse(zeros, "has a zero point that is not the middle, but config.json says sym=true");
  }
  return absl::OkStatus();
}

// Inputs in their own order, which desc_act=false promises.
absl::Status CheckGroupIndex(const Wanted& wanted) {
  if (!wanted.Has(".g_idx")) return absl::OkStatus();
  ATELIER_ASSIGN_OR_RETURN(const TensorView index,
                           wanted.Require(".g_idx", {wanted.columns}, {DType::kI32}));
  if (!wanted.checkpoint.IsFetched(index.data)) return absl::OkStatus();
  for (int64_t i = 0; i < wanted.columns; ++i) {
    if (Word(index, static_cast<size_t>(i)) == i / wanted.group()) continue;
    return Refuse(index,
                  "permutes the inputs (act-order), which is not supported; use a checkpoint "
                  "quantised with desc_act=false",
                  absl::StatusCode::kUnimplemented);
  }
  return absl::OkStatus();
}

absl::StatusOr<PublishedMatrix> FindGptq(const Wanted& wanted) {
  const int64_t rows = wanted.rows, columns = wanted.columns;
  ATELIER_RETURN_IF_ERROR(CheckDivides(wanted, columns, kNibblesPerWord, "columns"));
  ATELIER_RETURN_IF_ERROR(CheckDivides(wanted, columns, wanted.group(), "columns"));
  ATELIER_RETURN_IF_ERROR(CheckDivides(wanted, rows, kNibblesPerWord, "rows"));
  ATELIER_ASSIGN_OR_RETURN(
      const TensorView codes,
      wanted.Require(".qweight", {columns / kNibblesPerWord, rows}, {DType::kI32}));
  ATELIER_ASSIGN_OR_RETURN(
      const TensorView scales,
      wanted.Require(".scales", {wanted.groups(), rows}, {DType::kF16, DType::kBF16}));
  ATELIER_ASSIGN_OR_RETURN(
      const TensorView zeros,
      wanted.Require(".qzeros", {wanted.groups(), rows / kNibblesPerWord}, {DType::kI32}));
  ATELIER_RETURN_IF_ERROR(CheckGroupIndex(wanted));
  const auto n = static_cast<size_t>(rows);
  Int4Source::Layout layout;
  layout.codes = {codes.data.data(), 1, n, 0, 3};
  layout.scales = {scales.data.data(), 1, n};
  layout.zero_offset = wanted.config().zero_offset;
  if (wanted.config().symmetric) {
    ATELIER_RETURN_IF_ERROR(CheckSymmetric(wanted, zeros));
  } else {
    layout.zeros = {zeros.data.data(), 1, n / kNibblesPerWord, 3, 0};
  }
  std::vector<MatrixBytes> bytes = {Lines(codes, MatrixBytes::Lines::kColumns, kNibblesPerWord),
                                    Whole(scales), Whole(zeros)};
  wanted.AddIfThere(".g_idx", bytes);
  return Int4Matrix(wanted, codes, scales.dtype, layout, std::move(bytes));
}

absl::StatusOr<PublishedMatrix> FindAwq(const Wanted& wanted) {
  const int64_t rows = wanted.rows, words = rows / kNibblesPerWord;
  ATELIER_RETURN_IF_ERROR(CheckDivides(wanted, wanted.columns, wanted.group(), "columns"));
  ATELIER_RETURN_IF_ERROR(CheckDivides(wanted, rows, kNibblesPerWord, "rows"));
  ATELIER_ASSIGN_OR_RETURN(const TensorView codes,
                           wanted.Require(".qweight", {wanted.columns, words}, {DType::kI32}));
  ATELIER_ASSIGN_OR_RETURN(
      const TensorView scales,
      wanted.Require(".scales", {wanted.groups(), rows}, {DType::kF16, DType::kBF16}));
  ATELIER_ASSIGN_OR_RETURN(const TensorView zeros,
                           wanted.Require(".qzeros", {wanted.groups(), words}, {DType::kI32}));
  const auto stride = static_cast<size_t>(words);
  Int4Source::Layout layout;
  layout.codes = {codes.data.data(), 1, stride, 3, 0, {0, 4, 1, 5, 2, 6, 3, 7}};
  layout.zeros = layout.codes;
  layout.zeros.data = zeros.data.data();
  layout.scales = {scales.data.data(), 1, static_cast<size_t>(rows)};
  return Int4Matrix(wanted, codes, scales.dtype, layout,
                    {Lines(codes, MatrixBytes::Lines::kColumns), Whole(scales), Whole(zeros)});
}

PublishedMatrix MxFp4Matrix(TensorView codes, const MxFp4Source::Layout& layout,
                            std::vector<MatrixBytes> bytes) {
  return {std::move(codes),
          QuantMatrix{Method::kMXFP4, false, std::make_shared<MxFp4Source>(layout)},
          std::move(bytes)};
}

absl::StatusOr<PublishedMatrix> FindPackedMxFp4(const Wanted& wanted) {
  ATELIER_RETURN_IF_ERROR(CheckDivides(wanted, wanted.columns, kMxGroup, "columns"));
  ATELIER_ASSIGN_OR_RETURN(
      const TensorView codes,
      wanted.Require(".weight_packed", {wanted.rows, wanted.columns / 2}, {DType::kU8}));
  ATELIER_ASSIGN_OR_RETURN(const TensorView scales,
                           wanted.Require(".weight_scale", {wanted.rows, wanted.columns / kMxGroup},
                                          {DType::kU8, DType::kF8E8M0}));
  return MxFp4Matrix(
      codes, {codes.data.data(), scales.data.data(), static_cast<size_t>(wanted.columns), 0, 1},
      {Rows(codes), Rows(scales)});
}

PublishedMatrix Fp8Matrix(const TensorView& codes, const TensorView& scales, Method method) {
  const Fp8Source::Layout layout{method, codes.data.data(), static_cast<size_t>(codes.shape[1]),
                                 scales.data.data(), scales.dtype};
  return {codes,
          QuantMatrix{method, false, std::make_shared<Fp8Source>(layout)},
          {Rows(codes), Whole(scales)}};
}

absl::StatusOr<TensorView> Fp8Codes(const Wanted& wanted) {
  return wanted.Require(".weight", {wanted.rows, wanted.columns}, {DType::kF8E4M3});
}

absl::StatusOr<PublishedMatrix> FindFp8Blocks(const Wanted& wanted) {
  constexpr int64_t kBlock = 128;
  ATELIER_ASSIGN_OR_RETURN(const TensorView codes, Fp8Codes(wanted));
  ATELIER_ASSIGN_OR_RETURN(
      const TensorView scales,
      wanted.Require(".weight_scale_inv",
                     {CeilDiv(wanted.rows, kBlock), CeilDiv(wanted.columns, kBlock)},
                     {DType::kF32, DType::kBF16}));
  return Fp8Matrix(codes, scales, Method::kFP8_BLOCK);
}

absl::StatusOr<PublishedMatrix> FindFp8Rows(const Wanted& wanted) {
  ATELIER_ASSIGN_OR_RETURN(const TensorView codes, Fp8Codes(wanted));
  ATELIER_ASSIGN_OR_RETURN(TensorView scales,
                           wanted.checkpoint.Find(absl::StrCat(wanted.name, ".weight_scale")));
  // Some exports leave the second dimension out.
  const Shape shape = scales.shape.size() == 1 ? Shape{wanted.rows} : Shape{wanted.rows, 1};
  ATELIER_ASSIGN_OR_RETURN(
      scales, wanted.Require(".weight_scale", shape, {DType::kF32, DType::kBF16, DType::kF16}));
  return Fp8Matrix(codes, scales, Method::kFP8_ROW);
}

absl::StatusOr<PublishedMatrix> FindMxFp8(const Wanted& wanted) {
  ATELIER_RETURN_IF_ERROR(CheckDivides(wanted, wanted.columns, kMxGroup, "columns"));
  ATELIER_ASSIGN_OR_RETURN(const TensorView codes, Fp8Codes(wanted));
  ATELIER_ASSIGN_OR_RETURN(
      const TensorView scales,
      wanted.Require(".weight_scale_inv", {wanted.rows, wanted.columns / kMxGroup},
                     {DType::kU8, DType::kF8E8M0}));
  return Fp8Matrix(codes, scales, Method::kMXFP8);
}

// The blocks and scales of all experts' matrices [rows, columns] of a layer.
struct Blocks {
  TensorView codes;
  TensorView scales;
  MxFp4Source::Layout layout;
};

absl::StatusOr<Blocks> FindBlocks(const Checkpoint& checkpoint, const std::string& name,
                                  int64_t rows, int64_t columns) {
  const Wanted wanted{checkpoint, name, rows, columns};
  ATELIER_RETURN_IF_ERROR(CheckDivides(wanted, columns, kMxGroup, "columns"));
  const int64_t experts = checkpoint.config().moe.num_experts;
  ATELIER_ASSIGN_OR_RETURN(
      const TensorView codes,
      wanted.Require("_blocks", {experts, rows, columns / kMxGroup, kMxGroup / 2}, {DType::kU8}));
  ATELIER_ASSIGN_OR_RETURN(
      const TensorView scales,
      wanted.Require("_scales", {experts, rows, columns / kMxGroup}, {DType::kU8, DType::kF8E8M0}));
  return Blocks{
      codes, scales, {codes.data.data(), scales.data.data(), static_cast<size_t>(columns), 0, 1}};
}

// What one expert has of them, in `num_lines` lines.
std::vector<MatrixBytes> BytesOfExpert(const Blocks& blocks, int64_t expert, int64_t num_lines) {
  std::vector<MatrixBytes> bytes;
  for (const TensorView* tensor : {&blocks.codes, &blocks.scales}) {
    const size_t size = tensor->data.size() / static_cast<size_t>(tensor->shape[0]);
    bytes.push_back({tensor->data.subspan(static_cast<size_t>(expert) * size, size),
                     MatrixBytes::Lines::kRows, static_cast<size_t>(num_lines)});
  }
  return bytes;
}

}  // namespace

bool HasQuantMatrix(const Checkpoint& checkpoint, absl::string_view name) {
  const Wanted wanted{checkpoint, std::string(name), 0, 0};
  switch (wanted.config().format) {
    case QuantFormat::kPackedInt4:
    case QuantFormat::kPackedMxFp4:
      return wanted.Has(".weight_packed");
    case QuantFormat::kGptq:
    case QuantFormat::kAwq:
      return wanted.Has(".qweight");
    case QuantFormat::kFp8Blocks:
    case QuantFormat::kFp8Rows:
    case QuantFormat::kMxFp8: {
      const absl::StatusOr<TensorView> weight =
          checkpoint.Find(absl::StrCat(wanted.name, ".weight"));
      return weight.ok() && weight->dtype == DType::kF8E4M3;
    }
    case QuantFormat::kMxFp4Blocks:
    case QuantFormat::kNone:
      return false;
  }
  return false;
}

bool HasFusedQuantMatrices(const Checkpoint& checkpoint, absl::string_view prefix) {
  return checkpoint.config().quantization.format == QuantFormat::kMxFp4Blocks &&
         (checkpoint.Find(absl::StrCat(prefix, "gate_up_proj_blocks")).ok() ||
          checkpoint.Find(absl::StrCat(prefix, "down_proj_blocks")).ok());
}

absl::StatusOr<PublishedMatrix> FindQuantMatrix(const Checkpoint& checkpoint,
                                                absl::string_view name, int rows, int columns) {
  const Wanted wanted{checkpoint, std::string(name), rows, columns};
  switch (wanted.config().format) {
    case QuantFormat::kPackedInt4:
      return FindPackedInt4(wanted);
    case QuantFormat::kPackedMxFp4:
      return FindPackedMxFp4(wanted);
    case QuantFormat::kGptq:
      return FindGptq(wanted);
    case QuantFormat::kAwq:
      return FindAwq(wanted);
    case QuantFormat::kFp8Blocks:
      return FindFp8Blocks(wanted);
    case QuantFormat::kFp8Rows:
      return FindFp8Rows(wanted);
    case QuantFormat::kMxFp8:
      return FindMxFp8(wanted);
    case QuantFormat::kMxFp4Blocks:
    case QuantFormat::kNone:
      break;
  }
  return absl::NotFoundError(absl::StrCat("matrix ", QuotedName(name), " is not quantised"));
}

absl::StatusOr<ExpertTensors> FindFusedQuantExpert(const Checkpoint& checkpoint,
                                                   absl::string_view prefix, int expert) {
  const int64_t hidden = checkpoint.config().hidden_size;
  const int64_t inner = checkpoint.config().moe.intermediate_size;
  ATELIER_ASSIGN_OR_RETURN(
      Blocks gate_up,
      FindBlocks(checkpoint, absl::StrCat(prefix, "gate_up_proj"), 2 * inner, hidden));
  ATELIER_ASSIGN_OR_RETURN(
      Blocks down, FindBlocks(checkpoint, absl::StrCat(prefix, "down_proj"), hidden, inner));
  gate_up.layout.first_row = static_cast<size_t>(expert) * static_cast<size_t>(2 * inner);
  gate_up.layout.row_step = 2;
  MxFp4Source::Layout up = gate_up.layout;
  ++up.first_row;
  down.layout.first_row = static_cast<size_t>(expert) * static_cast<size_t>(hidden);
  // A row of gate and one of up are a line.
  const std::vector<MatrixBytes> both = BytesOfExpert(gate_up, expert, inner);
  return ExpertTensors{
      .gate = MxFp4Matrix(gate_up.codes, gate_up.layout, both),
      .up = MxFp4Matrix(gate_up.codes, up, both),
      .down = MxFp4Matrix(down.codes, down.layout, BytesOfExpert(down, expert, hidden))};
}

}  // namespace atelier
