#include "libs/checkpoint/gguf_header.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "libs/base/checked_math.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/quoted_name.h"
#include "libs/checkpoint/safetensors_header.h"

namespace atelier {
namespace {

constexpr char kMagic[4] = {'G', 'G', 'U', 'F'};
constexpr uint64_t kMaxKeys = 1 << 16;
constexpr size_t kMaxKeyBytes = 1 << 10;
constexpr uint32_t kMaxDims = 4;
constexpr int kMaxArrayDepth = 4;
constexpr uint64_t kDefaultAlignment = 32;
constexpr int64_t kMaxAlignment = 1 << 20;

// What the smallest key and value, and the smallest tensor's entry, occupy.
constexpr uint64_t kMinKeyBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

// A cursor over the header. Every read is checked against the bytes that are there.
class HeaderReader {
 public:
  // The first bytes of a file of `size`.
  HeaderReader(absl::Span<const uint8_t> bytes, uint64_t size, absl::string_view file)
      : bytes_(bytes), size_(std::min(size, kMaxHeaderBytes)), file_(file) {}

  size_t position() const { return position_; }
  uint64_t left() const { return size_ - position_; }

  template <typename T>
  absl::StatusOr<T> Read(absl::string_view what) {
    ATELIER_ASSIGN_OR_RETURN(const absl::Span<const uint8_t> at, Take(sizeof(T), what));
    T value;
    std::memcpy(&value, at.data(), sizeof(value));
    return value;
  }

  absl::StatusOr<absl::string_view> ReadString(absl::string_view what) {
    ATELIER_ASSIGN_OR_RETURN(const uint64_t length, Read<uint64_t>(what));
    ATELIER_ASSIGN_OR_RETURN(const absl::Span<const uint8_t> text, Take(length, what));
    return absl::string_view(reinterpret_cast<const char*>(text.data()), text.size());
  }

  absl::StatusOr<GgufValueType> ReadValueType(absl::string_view what) {
    ATELIER_ASSIGN_OR_RETURN(const uint32_t type, Read<uint32_t>(what));
    if (type <= static_cast<uint32_t>(GgufValueType::kF64)) return static_cast<GgufValueType>(type);
    return Refuse(absl::StrCat(what, ": value type ", type, " is none of GGUF's (0 to 12)"));
  }

  absl::StatusOr<GgufValue> ReadValue(GgufValueType type, absl::string_view what);

  absl::Status Refuse(absl::string_view what,
                      absl::StatusCode code = absl::StatusCode::kInvalidArgument) const {
    return absl::Status(code, absl::StrCat(file_, ": ", what));
  }

 private:
  absl::StatusOr<absl::Span<const uint8_t>> Take(uint64_t count, absl::string_view what) {
    if (count > left()) {
      const bool whole = size_ < kMaxHeaderBytes;
      return Refuse(absl::StrCat(what, " claims ", count, " bytes at byte ", position_, ", but ",
                                 whole ? "the file ends" : "a header may have at most",
                                 whole ? absl::StrCat(" ", left(), " bytes later")
                                       : absl::StrCat(" ", kMaxHeaderBytes, " bytes")),
                    whole ? absl::StatusCode::kDataLoss : absl::StatusCode::kInvalidArgument);
    }
    if (count > bytes_.size() - position_) {
      return Refuse(absl::StrCat(what, " lies beyond the first ", bytes_.size(), " bytes"),
                    absl::StatusCode::kOutOfRange);
    }
    const absl::Span<const uint8_t> taken = bytes_.subspan(position_, count);
    position_ += count;
    return taken;
  }

  absl::StatusOr<GgufValue> ReadArray(absl::string_view what);
  absl::Status SkipElements(GgufValueType type, uint64_t count, int depth, absl::string_view what);

  const absl::Span<const uint8_t> bytes_;
  const uint64_t size_;  // of the file, as far as a header may reach
  const absl::string_view file_;
  size_t position_ = 0;
};

absl::StatusOr<GgufValue> HeaderReader::ReadValue(GgufValueType type, absl::string_view what) {
  if (type == GgufValueType::kArray) return ReadArray(what);
  if (type == GgufValueType::kString) {
    GgufValue value;
    value.type = type;
    ATELIER_ASSIGN_OR_RETURN(value.text, ReadString(what));
    return value;
  }
  ATELIER_ASSIGN_OR_RETURN(const absl::Span<const uint8_t> at, Take(GgufValueBytes(type), what));
  const GgufValue value = ReadGgufScalar(type, at.data());
  if (type == GgufValueType::kBool && value.integer > 1) {
    return Refuse(absl::StrCat(what, ": ", value.integer, " is neither true (1) nor false (0)"));
  }
  return value;
}

absl::StatusOr<GgufValue> HeaderReader::ReadArray(absl::string_view what) {
  GgufValue value;
  value.type = GgufValueType::kArray;
  ATELIER_ASSIGN_OR_RETURN(value.element_type, ReadValueType(what));
  ATELIER_ASSIGN_OR_RETURN(value.count, Read<uint64_t>(what));
  const size_t begin = position_;
  ATELIER_RETURN_IF_ERROR(SkipElements(value.element_type, value.count, 1, what));
  value.elements = bytes_.subspan(begin, position_ - begin);
  return value;
}

absl::Status HeaderReader::SkipElements(GgufValueType type, uint64_t count, int depth,
                                        absl::string_view what) {
  const size_t element = GgufValueBytes(type);
  if (element > 0) {
    const std::optional<uint64_t> total = CheckedMul<uint64_t>(count, element);
    return Take(total.value_or(UINT64_MAX), absl::StrCat(what, ": a list of ", count)).status();
  }
  if (type == GgufValueType::kArray && depth == kMaxArrayDepth) {
    return Refuse(absl::StrCat(what, ": lists nested deeper than ", kMaxArrayDepth));
  }
  // Every element occupies bytes, so the file's end bounds the loop.
  for (uint64_t i = 0; i < count; ++i) {
    if (type == GgufValueType::kString) {
      ATELIER_RETURN_IF_ERROR(ReadString(what).status());
      continue;
    }
    ATELIER_ASSIGN_OR_RETURN(const GgufValueType inner, ReadValueType(what));
    ATELIER_ASSIGN_OR_RETURN(const uint64_t inner_count, Read<uint64_t>(what));
    ATELIER_RETURN_IF_ERROR(SkipElements(inner, inner_count, depth + 1, what));
  }
  return absl::OkStatus();
}

struct Counts {
  uint64_t tensors = 0;
  uint64_t keys = 0;
};

absl::Status CheckVersion(HeaderReader& reader) {
  ATELIER_ASSIGN_OR_RETURN(const uint32_t version, reader.Read<uint32_t>("the version"));
  if (version == 2 || version == 3) return absl::OkStatus();
  const bool swapped = (version & 0xffffu) == 0 && version != 0;
  return reader.Refuse(
      swapped ? std::string("is a big-endian GGUF file; this build reads little-endian ones")
              : absl::StrCat("GGUF version ", version, " is not supported by this build, which ",
                             "reads 2 and 3"),
      absl::StatusCode::kUnimplemented);
}

absl::StatusOr<Counts> ReadCounts(HeaderReader& reader) {
  Counts counts;
  ATELIER_ASSIGN_OR_RETURN(counts.tensors, reader.Read<uint64_t>("the number of tensors"));
  ATELIER_ASSIGN_OR_RETURN(counts.keys, reader.Read<uint64_t>("the number of keys"));
  if (counts.keys > std::min(kMaxKeys, reader.left() / kMinKeyBytes)) {
    return reader.Refuse(absl::StrCat("claims ", counts.keys, " metadata keys in ", reader.left(),
                                      " bytes (at most ", kMaxKeys, ")"));
  }
  if (counts.tensors > std::min(uint64_t{kMaxTensors}, reader.left() / kMinTensorBytes)) {
    return reader.Refuse(absl::StrCat("claims ", counts.tensors, " tensors in ", reader.left(),
                                      " bytes (at most ", kMaxTensors, ")"));
  }
  return counts;
}

absl::Status ReadMetadata(HeaderReader& reader, uint64_t count, GgufMetadata& metadata) {
  for (uint64_t i = 0; i < count; ++i) {
    ATELIER_ASSIGN_OR_RETURN(const absl::string_view key,
                             reader.ReadString(absl::StrCat("metadata key ", i)));
    if (key.empty() || key.size() > kMaxKeyBytes) {
      return reader.Refuse(absl::StrCat("metadata key ", i, " ", QuotedName(key), " has ",
                                        key.size(), " bytes, not 1 to ", kMaxKeyBytes));
    }
    const std::string what = absl::StrCat("key ", QuotedName(key));
    ATELIER_ASSIGN_OR_RETURN(const GgufValueType type, reader.ReadValueType(what));
    ATELIER_ASSIGN_OR_RETURN(GgufValue value, reader.ReadValue(type, what));
    if (!metadata.values.try_emplace(std::string(key), std::move(value)).second) {
      return reader.Refuse(absl::StrCat(what, " appears twice"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Alignment(const GgufMetadata& metadata) {
  GgufFields fields(metadata);
  constexpr char kKey[] = "general.alignment";
  const int alignment = fields.Int(kKey, {1, kMaxAlignment}, static_cast<int>(kDefaultAlignment));
  if ((alignment & (alignment - 1)) != 0) fields.Refuse(kKey, "must be a power of two");
  ATELIER_RETURN_IF_ERROR(fields.status());
  return static_cast<uint64_t>(alignment);
}

// The type and, in `tensor.end`, the size.
absl::Status ReadType(HeaderReader& reader, const std::string& what, GgufTensor& tensor) {
  ATELIER_ASSIGN_OR_RETURN(const uint32_t id, reader.Read<uint32_t>(what));
  tensor.type = FindGgufType(id);
  if (tensor.type == nullptr) {
    const absl::string_view foreign = ForeignGgufType(id);
    return reader.Refuse(
        absl::StrCat(what, ": type id ", id,
                     foreign.empty() ? "" : absl::StrCat(" (", foreign, ")"),
                     " is not supported by this build, which computes with ", ComputedGgufTypes()),
        absl::StatusCode::kUnimplemented);
  }
  const auto row = static_cast<uint64_t>(tensor.shape.back());
  if (row % tensor.type->elements != 0) {
    return reader.Refuse(absl::StrCat(what, ": rows of ", row, " elements are not whole blocks of ",
                                      tensor.type->elements, ", as ", tensor.type->name, " has"));
  }
  uint64_t blocks = row / tensor.type->elements;
  for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) {
    blocks *= static_cast<uint64_t>(tensor.shape[i]);  // at most 2^63 elements
  }
  const std::optional<uint64_t> bytes = CheckedMul<uint64_t>(blocks, tensor.type->bytes);
  if (!bytes) return reader.Refuse(absl::StrCat(what, ": more bytes than 64 bits can count"));
  tensor.end = *bytes;
  return absl::OkStatus();
}

absl::Status ReadShape(HeaderReader& reader, const std::string& what, GgufTensor& tensor) {
  ATELIER_ASSIGN_OR_RETURN(const uint32_t dims, reader.Read<uint32_t>(what));
  if (dims < 1 || dims > kMaxDims) {
    return reader.Refuse(absl::StrCat(what, ": ", dims, " dimensions, not 1 to ", kMaxDims));
  }
  int64_t elements = 1;
  for (uint32_t i = 0; i < dims; ++i) {
    ATELIER_ASSIGN_OR_RETURN(const uint64_t dim, reader.Read<uint64_t>(what));
    const std::optional<int64_t> total =
        dim == 0 || dim > static_cast<uint64_t>(INT64_MAX)
            ? std::nullopt
            : CheckedMul<int64_t>(elements, static_cast<int64_t>(dim));
    if (!total) return reader.Refuse(absl::StrCat(what, ": dimension ", i, " is ", dim));
    elements = *total;
    tensor.shape.push_back(static_cast<int64_t>(dim));
  }
  std::reverse(tensor.shape.begin(), tensor.shape.end());
  return absl::OkStatus();
}

// Offsets are still relative to the data.
absl::StatusOr<GgufTensor> ReadTensor(HeaderReader& reader, uint64_t index, uint64_t alignment) {
  GgufTensor tensor;
  ATELIER_ASSIGN_OR_RETURN(const absl::string_view name,
                           reader.ReadString(absl::StrCat("name of tensor ", index)));
  const std::string what = absl::StrCat("tensor ", QuotedName(name));
  if (name.empty() || name.size() > kMaxNameBytes) {
    return reader.Refuse(
        absl::StrCat(what, ": its name has ", name.size(), " bytes, not 1 to ", kMaxNameBytes));
  }
  tensor.name = std::string(name);
  ATELIER_RETURN_IF_ERROR(ReadShape(reader, what, tensor));
  ATELIER_RETURN_IF_ERROR(ReadType(reader, what, tensor));
  ATELIER_ASSIGN_OR_RETURN(tensor.begin, reader.Read<uint64_t>(what));
  if (tensor.begin % alignment != 0) {
    return reader.Refuse(absl::StrCat(what, ": offset ", tensor.begin, " is no multiple of the ",
                                      "alignment ", alignment));
  }
  const std::optional<uint64_t> end = CheckedAdd<uint64_t>(tensor.begin, tensor.end);
  if (!end) return reader.Refuse(absl::StrCat(what, ": offset ", tensor.begin, " is too large"));
  tensor.end = *end;
  return tensor;
}

// `tensors` by offset, from the data on; the data have data_bytes.
absl::Status CheckPlaces(const HeaderReader& reader, const std::vector<GgufTensor>& tensors,
                         uint64_t data_bytes, uint64_t alignment) {
  const GgufTensor* previous = nullptr;
  for (const GgufTensor& tensor : tensors) {
    const std::string what = absl::StrCat("tensor ", QuotedName(tensor.name));
    const uint64_t covered = previous == nullptr ? 0 : previous->end;
    if (tensor.begin < covered) {
      return reader.Refuse(absl::StrCat(what, " at offset ", tensor.begin, " overlaps tensor ",
                                        QuotedName(previous->name), ", which ends at ", covered));
    }
    if (tensor.begin - covered >= alignment) {
      return reader.Refuse(absl::StrCat(what, " at offset ", tensor.begin, ": ",
                                        tensor.begin - covered, " bytes before it belong to none"));
    }
    if (tensor.end > data_bytes) {
      return reader.Refuse(absl::StrCat(what, " ends at offset ", tensor.end, " of the data, but ",
                                        "the file has only ", data_bytes, ": it is cut short"),
                           absl::StatusCode::kDataLoss);
    }
    previous = &tensor;
  }
  const uint64_t covered = previous == nullptr ? 0 : previous->end;
  if (data_bytes - covered < alignment) return absl::OkStatus();
  return reader.Refuse(absl::StrCat(data_bytes - covered, " bytes follow the last tensor: parts ",
                                    "of a split set must not be joined, they are files of their ",
                                    "own"));
}

absl::StatusOr<std::vector<GgufTensor>> ReadTensors(HeaderReader& reader, uint64_t count,
                                                    uint64_t alignment) {
  std::vector<GgufTensor> tensors;
  absl::flat_hash_set<std::string> names;
  for (uint64_t i = 0; i < count; ++i) {
    ATELIER_ASSIGN_OR_RETURN(GgufTensor tensor, ReadTensor(reader, i, alignment));
    if (!names.insert(tensor.name).second) {
      return reader.Refuse(absl::StrCat("tensor ", QuotedName(tensor.name), " appears twice"));
    }
    tensors.push_back(std::move(tensor));
  }
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const GgufTensor& a, const GgufTensor& b) { return a.begin < b.begin; });
  return tensors;
}

}  // namespace

bool HasGgufMagic(absl::Span<const uint8_t> bytes) {
  return bytes.size() >= sizeof(kMagic) && std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) == 0;
}

absl::StatusOr<GgufHeader> ParseGgufHeader(absl::Span<const uint8_t> bytes,
                                           absl::string_view file) {
  return ParseGgufHeader(bytes, bytes.size(), file);
}

absl::StatusOr<GgufHeader> ParseGgufHeader(absl::Span<const uint8_t> bytes, uint64_t file_bytes,
                                           absl::string_view file) {
  HeaderReader reader(bytes.first(std::min<size_t>(bytes.size(), kMaxHeaderBytes)), file_bytes,
                      file);
  if (!HasGgufMagic(bytes))
    return reader.Refuse("is no GGUF file, nor a folder: it does not begin with \"GGUF\"");
  ATELIER_RETURN_IF_ERROR(reader.Read<uint32_t>("the magic").status());
  ATELIER_RETURN_IF_ERROR(CheckVersion(reader));
  ATELIER_ASSIGN_OR_RETURN(const Counts counts, ReadCounts(reader));
  GgufHeader header;
  header.metadata.file = std::string(file);
  ATELIER_RETURN_IF_ERROR(ReadMetadata(reader, counts.keys, header.metadata));
  ATELIER_ASSIGN_OR_RETURN(const uint64_t alignment, Alignment(header.metadata));
  ATELIER_ASSIGN_OR_RETURN(header.tensors, ReadTensors(reader, counts.tensors, alignment));
  // A file without tensors may end with its header.
  header.data_begin =
      std::min<uint64_t>(RoundUp<uint64_t>(reader.position(), alignment), file_bytes);
  ATELIER_RETURN_IF_ERROR(
      CheckPlaces(reader, header.tensors, file_bytes - header.data_begin, alignment));
  for (GgufTensor& tensor : header.tensors) {
    tensor.begin += header.data_begin;
    tensor.end += header.data_begin;
  }
  return header;
}

}  // namespace atelier
