#include "libs/checkpoint/safetensors_header.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "libs/base/checked_math.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/json_stream.h"
#include "libs/checkpoint/quoted_name.h"

namespace atelier {
namespace {

constexpr absl::string_view kMetadataKey = "__metadata__";
constexpr size_t kLengthBytes = 8;

// {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, …,
//  "__metadata__": {"text": "text"}}
class HeaderReceiver final : public JsonReceiver {
 public:
  using JsonReceiver::JsonReceiver;

  std::vector<HeaderTensor> TakeTensors() { return std::move(tensors_); }

  bool start_object(size_t size) override {
    switch (state_) {
      case State::kStart:
        state_ = State::kTop;
        return true;
      case State::kEntry:
        state_ = tensor_.name == kMetadataKey ? State::kMetadata : State::kTensor;
        return true;
      default:
        return JsonReceiver::start_object(size);
    }
  }

  bool key(std::string& name) override {
    if (state_ == State::kMetadata) return true;
    if (state_ == State::kTop) return StartEntry(name);
    return StartField(name);
  }

  bool string(std::string& value) override {
    if (state_ == State::kMetadata) return true;
    if (state_ != State::kDType) return JsonReceiver::string(value);
    const std::optional<DType> dtype = ParseDType(value);
    if (!dtype.has_value()) {
      return Fail(absl::StrCat(QuotedName(value), " is not supported by this build"),
                  absl::StatusCode::kUnimplemented);
    }
    tensor_.dtype = *dtype;
    state_ = State::kTensor;
    return true;
  }

  bool start_array(size_t size) override {
    if (state_ != State::kShape && state_ != State::kOffsets) {
      return JsonReceiver::start_array(size);
    }
    if (in_list_) return Unexpected("a list inside the list");
    in_list_ = true;
    return true;
  }

  bool number_unsigned(uint64_t value) override {
    if (!in_list_) return JsonReceiver::number_unsigned(value);
    if (state_ == State::kOffsets) {
      if (num_offsets_ == 2) return Fail("more than two offsets");
      (num_offsets_++ == 0 ? tensor_.begin : tensor_.end) = value;
      return true;
    }
    if (tensor_.shape.size() == kMaxRank) {
      return Fail(absl::StrCat("more than ", kMaxRank, " dimensions"));
    }
    if (value > static_cast<uint64_t>(INT64_MAX)) return JsonReceiver::number_unsigned(value);
    tensor_.shape.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool end_array() override {
    if (state_ == State::kOffsets && num_offsets_ != 2) return Fail("two offsets are needed");
    in_list_ = false;
    state_ = State::kTensor;
    return true;
  }

  bool end_object() override {
    if (state_ == State::kTensor) {
      if (!(has_dtype_ && has_shape_ && has_offsets_)) {
        return Fail("dtype, shape and data_offsets are needed");
      }
      tensors_.push_back(std::move(tensor_));
    }
    state_ = State::kTop;
    return true;
  }

 protected:
  std::string Place() const override {
    if (state_ == State::kStart || state_ == State::kTop) return "header";
    const std::string tensor = absl::StrCat("tensor ", QuotedName(tensor_.name));
    if (state_ == State::kDType) return absl::StrCat(tensor, ": dtype");
    if (state_ == State::kShape) return absl::StrCat(tensor, ": shape");
    if (state_ == State::kOffsets) return absl::StrCat(tensor, ": data_offsets");
    return tensor;
  }

 private:
  enum class State { kStart, kTop, kEntry, kMetadata, kTensor, kDType, kShape, kOffsets };

  bool StartEntry(const std::string& name) {
    tensor_ = HeaderTensor{};
    tensor_.name = name;  // a copy takes what it needs; the parser's buffer has spare room
    has_dtype_ = has_shape_ = has_offsets_ = false;
    num_offsets_ = 0;
    state_ = State::kEntry;
    if (tensor_.name == kMetadataKey && std::exchange(has_metadata_, true)) {
      return Fail("occurs twice");
    }
    if (tensor_.name.empty() || tensor_.name.size() > kMaxNameBytes) {
      return Fail(absl::StrCat("a name must have from 1 to ", kMaxNameBytes, " bytes"));
    }
    return tensors_.size() < kMaxTensors ||
           Fail(absl::StrCat("more than ", kMaxTensors, " tensors"));
  }

  bool StartField(std::string& name) {
    bool* seen = nullptr;
    if (name == "dtype") {
      seen = &has_dtype_;
      state_ = State::kDType;
    } else if (name == "shape") {
      seen = &has_shape_;
      state_ = State::kShape;
    } else if (name == "data_offsets") {
      seen = &has_offsets_;
      state_ = State::kOffsets;
    }
    if (seen == nullptr) return JsonReceiver::key(name);
    return !std::exchange(*seen, true) || Fail("occurs twice");
  }

  State state_ = State::kStart;
  HeaderTensor tensor_;  // the one being read
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  bool in_list_ = false;
  int num_offsets_ = 0;
  bool has_metadata_ = false;
  std::vector<HeaderTensor> tensors_;
};

std::optional<uint64_t> ByteSize(const HeaderTensor& tensor) {
  std::optional<uint64_t> bytes = DTypeBytes(tensor.dtype);
  for (int64_t dim : tensor.shape) {
    bytes = CheckedMul(*bytes, static_cast<uint64_t>(dim));
    if (!bytes.has_value()) return std::nullopt;
  }
  return bytes;
}

std::string PlaceOf(const HeaderTensor& tensor, absl::string_view file) {
  return absl::StrCat(file, ": tensor ", QuotedName(tensor.name), ": ");
}

std::string Bounds(const HeaderTensor& tensor) {
  return absl::StrCat("[", tensor.begin, ", ", tensor.end, ")");
}

absl::Status CheckTensor(const HeaderTensor& tensor, uint64_t data_bytes, absl::string_view file) {
  if (tensor.begin > tensor.end) {
    return absl::InvalidArgumentError(absl::StrCat(PlaceOf(tensor, file), "data_offsets ",
                                                   Bounds(tensor), " end before they begin"));
  }
  const std::optional<uint64_t> bytes = ByteSize(tensor);
  if (bytes != tensor.end - tensor.begin) {
    return absl::InvalidArgumentError(absl::StrCat(
        PlaceOf(tensor, file), "shape [", absl::StrJoin(tensor.shape, ", "), "] of ",
        DTypeName(tensor.dtype), " takes ",
        bytes.has_value() ? absl::StrCat(*bytes) : "more than 2^64", " bytes, but data_offsets ",
        Bounds(tensor), " hold ", tensor.end - tensor.begin));
  }
  if (tensor.end > data_bytes) {
    return absl::DataLossError(absl::StrCat(PlaceOf(tensor, file), "data_offsets ", Bounds(tensor),
                                            " reach beyond the ", data_bytes,
                                            " bytes of data in the file; is it truncated?"));
  }
  return absl::OkStatus();
}

absl::Status CheckNamesUnique(const std::vector<HeaderTensor>& tensors, absl::string_view file) {
  absl::flat_hash_set<absl::string_view> names;
  names.reserve(tensors.size());
  for (const HeaderTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ": tensor ", QuotedName(tensor.name), " occurs twice"));
    }
  }
  return absl::OkStatus();
}

// Sorts the tensors by offset. The format allows no hole and no overlap.
absl::Status SortAndCheckLayout(std::vector<HeaderTensor>& tensors, uint64_t data_bytes,
                                absl::string_view file) {
  std::sort(tensors.begin(), tensors.end(), [](const HeaderTensor& a, const HeaderTensor& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t covered = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const HeaderTensor& tensor = tensors[i];
    if (tensor.begin < covered) {
      return absl::InvalidArgumentError(absl::StrCat(
          PlaceOf(tensor, file), "data_offsets ", Bounds(tensor), " overlap those of tensor ",
          QuotedName(tensors[i - 1].name), ", ", Bounds(tensors[i - 1])));
    }
    if (tensor.begin > covered) {
      return absl::InvalidArgumentError(absl::StrCat(PlaceOf(tensor, file), "data_offsets ",
                                                     Bounds(tensor), " leave a hole after byte ",
                                                     covered));
    }
    covered = tensor.end;
  }
  if (covered != data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        file, ": ", data_bytes - covered, " bytes of data after the last tensor belong to none"));
  }
  return absl::OkStatus();
}

// The text between the length and the data.
absl::StatusOr<absl::string_view> HeaderText(absl::Span<const uint8_t> bytes,
                                             absl::string_view file) {
  ATELIER_ASSIGN_OR_RETURN(const uint64_t end, SafetensorsDataBegin(bytes, bytes.size(), file));
  const size_t length = end - kLengthBytes;
  const auto* text = reinterpret_cast<const char*>(bytes.data()) + kLengthBytes;
  if (length == 0 || text[0] != '{') {
    return absl::InvalidArgumentError(absl::StrCat(file, ": the header must begin with {"));
  }
  return absl::string_view(text, length);
}

}  // namespace

absl::StatusOr<uint64_t> SafetensorsDataBegin(absl::Span<const uint8_t> first, uint64_t file_bytes,
                                              absl::string_view file) {
  if (file_bytes < kLengthBytes || first.size() < kLengthBytes) {
    return absl::DataLossError(absl::StrCat(file, ": ", file_bytes,
                                            " bytes are too few for a safetensors file, which "
                                            "begins with the header's length in 8"));
  }
  uint64_t length = 0;
  for (size_t i = kLengthBytes; i-- > 0;) length = length << 8 | first[i];
  if (length > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": header length ", length, " exceeds ",
                                                   kMaxHeaderBytes,
                                                   "; this is no safetensors file"));
  }
  if (length > file_bytes - kLengthBytes) {
    return absl::DataLossError(absl::StrCat(file, ": header length ", length,
                                            " reaches beyond the file's ", file_bytes,
                                            " bytes; is it truncated?"));
  }
  return kLengthBytes + length;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::Span<const uint8_t> bytes,
                                                         absl::string_view file) {
  ATELIER_ASSIGN_OR_RETURN(const absl::string_view text, HeaderText(bytes, file));
  // Free texts in the metadata may be long; names are checked when they arrive.
  constexpr JsonLimits kLimits{.max_depth = 3, .max_token_bytes = size_t{1} << 20};
  HeaderReceiver receiver(file);
  ATELIER_RETURN_IF_ERROR(ReadJson(text, kLimits, receiver));
  SafetensorsHeader header;
  header.data_begin = kLengthBytes + text.size();
  header.tensors = receiver.TakeTensors();
  const uint64_t data_bytes = bytes.size() - header.data_begin;
  ATELIER_RETURN_IF_ERROR(CheckNamesUnique(header.tensors, file));
  for (const HeaderTensor& tensor : header.tensors) {
    ATELIER_RETURN_IF_ERROR(CheckTensor(tensor, data_bytes, file));
  }
  ATELIER_RETURN_IF_ERROR(SortAndCheckLayout(header.tensors, data_bytes, file));
  return header;
}

}  // namespace atelier
