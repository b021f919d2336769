#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "libs/testing/synthetic_checkpoint.h"

// Quantised matrices in the layouts in which they are published, written from the layouts'
// descriptions and of no code that reads them.

namespace atelier::testing {

using Tensors = std::map<std::string, RawTensor>;

// A matrix as a quantiser made it, before it is laid out for publication.
struct Made {
  size_t rows, columns, group;
  std::vector<uint8_t> codes;      // [rows, columns], 0…15
  std::vector<uint8_t> zeros;      // [rows, groups], 0…15
  std::vector<uint16_t> scales;    // [rows, groups]
  std::vector<uint8_t> exponents;  // [rows, columns / 32]
  size_t groups() const { return columns / group; }
};

// Of random codes, zero points, exponents, and scales of any bits.
Made Make(size_t rows, size_t columns, size_t group, uint32_t seed);

inline int64_t Dim(size_t value) { return static_cast<int64_t>(value); }

template <typename T>
RawTensor Tensor(DType dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
  RawTensor tensor{dtype, std::move(shape), std::string(values.size() * sizeof(T), '\0')};
  std::memcpy(tensor.data.data(), values.data(), tensor.data.size());
  return tensor;
}

// Two codes a byte, the even one low.
std::vector<uint8_t> Pairs(const std::vector<uint8_t>& codes);

// Each adds the tensors "<name>.…" to `to`.
void AddCompressed(const std::string& name, const Made& made, bool symmetric, Tensors& to);
// Zero points are stored less `less`; symmetric: all are 8.
void AddGptq(const std::string& name, const Made& made, bool symmetric, uint32_t less, Tensors& to);
void AddAwq(const std::string& name, const Made& made, Tensors& to);
void AddPackedMxFp4(const std::string& name, const Made& made, Tensors& to);

}  // namespace atelier::testing
