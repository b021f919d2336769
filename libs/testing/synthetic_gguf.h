#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "libs/checkpoint/checkpoint.h"

namespace atelier::testing {

// Puts a GGUF file together, without checking it (tests of broken files pass nonsense).
class GgufWriter {
 public:
  struct Tensor {
    std::string name;
    uint32_t type = 0;           // GGUF's id
    std::vector<int64_t> shape;  // outermost dimension first
    std::string data;
  };

  // Metadata, in order.
  void Add(absl::string_view key, absl::string_view text);
  void Add(absl::string_view key, const char* text) { Add(key, absl::string_view(text)); }
  void Add(absl::string_view key, uint32_t value);
  void Add(absl::string_view key, int value) { Add(key, static_cast<uint32_t>(value)); }
  void Add(absl::string_view key, float value);
  void Add(absl::string_view key, bool value);
  void Add(absl::string_view key, const std::vector<std::string>& texts);
  void Add(absl::string_view key, const std::vector<int32_t>& values);
  // Any value type, with the bytes of the value.
  void AddRaw(absl::string_view key, uint32_t type, absl::string_view bytes);
  void AddTensor(Tensor tensor) { tensors.push_back(std::move(tensor)); }

  std::string Bytes() const;
  // Bytes of the header alone, before the padding.
  std::string Header() const;
  void Write(const std::string& path) const;
  // Tensors in equal runs over files "STEM-00001-of-0000N.gguf"; the metadata in the first.
  void WriteSplit(const std::string& stem, int parts) const;

  uint32_t version = 3;
  uint64_t alignment = 32;  // that is written; says nothing in the metadata
  std::vector<Tensor> tensors;
  // Where set: changes what the header says of a tensor's offset in the data.
  std::function<uint64_t(size_t tensor, uint64_t offset)> change_offset;
  uint64_t extra_tensors = 0;  // that the header counts beside those it has
  uint64_t extra_keys = 0;

 private:
  uint64_t num_keys_ = 0;
  std::string metadata_;
};

// Random blocks of a GGUF type, of which every bit but those of the largest scales is random;
// weights are about as large as 0.05. A pure function of (type, count, seed).
std::string RandomGgufBlocks(absl::string_view type, size_t elements, uint64_t seed);

// The model of a Hugging Face checkpoint as GGUF, with the experts of a layer in one tensor each.
// `type_of` chooses each tensor's type by its GGUF name: floats hold the checkpoint's values,
// rounded; of other types the values are random. It is not asked for vectors and routers: F32.
GgufWriter GgufOf(const Checkpoint& checkpoint,
                  const std::function<std::string(absl::string_view name)>& type_of);

}  // namespace atelier::testing
