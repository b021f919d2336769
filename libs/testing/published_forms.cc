#include "libs/testing/published_forms.h"

#include <functional>
#include <random>

namespace atelier::testing {
namespace {

// [d0, d1] words, of which `value(i, j, nibble)` gives the eight nibbles.
RawTensor Words(size_t d0, size_t d1,
                const std::function<uint32_t(size_t, size_t, size_t)>& value) {
  std::vector<uint32_t> words;
  for (size_t i = 0; i < d0; ++i) {
    for (size_t j = 0; j < d1; ++j) {
      uint32_t word = 0;
      for (size_t nibble = 0; nibble < 8; ++nibble) {
        word |= (value(i, j, nibble) & 15) << (4 * nibble);
      }
      words.push_back(word);
    }
  }
  return Tensor(DType::kI32, {static_cast<int64_t>(d0), static_cast<int64_t>(d1)}, words);
}

std::vector<uint16_t> Transposed(const Made& made) {
  std::vector<uint16_t> scales;
  for (size_t g = 0; g < made.groups(); ++g) {
    for (size_t o = 0; o < made.rows; ++o) scales.push_back(made.scales[o * made.groups() + g]);
  }
  return scales;
}

}  // namespace

Made Make(size_t rows, size_t columns, size_t group, uint32_t seed) {
  std::mt19937 random(seed);
  Made made{rows, columns, group, {}, {}, {}, {}};
  for (size_t i = 0; i < rows * columns; ++i) made.codes.push_back(random() & 15);
  for (size_t i = 0; i < rows * made.groups(); ++i) {
    made.zeros.push_back(static_cast<uint8_t>(1 + random() % 15));
    made.scales.push_back(static_cast<uint16_t>(random()));
  }
  for (size_t i = 0; i < rows * columns / 32; ++i) {
    made.exponents.push_back(static_cast<uint8_t>(random()));
  }
  return made;
}

// The published layouts, from their descriptions (reference of formats, sections 8.3 to 8.6).
void AddCompressed(const std::string& name, const Made& m, bool symmetric, Tensors& to) {
  to[name + ".weight_packed"] = Words(m.rows, m.columns / 8, [&](size_t o, size_t w, size_t j) {
    return uint32_t{m.codes[o * m.columns + 8 * w + j]};
  });
  to[name + ".weight_scale"] = Tensor(DType::kBF16, {Dim(m.rows), Dim(m.groups())}, m.scales);
  to[name + ".weight_shape"] =
      Tensor(DType::kI64, {2}, std::vector<int64_t>{Dim(m.rows), Dim(m.columns)});
  if (symmetric) return;
  to[name + ".weight_zero_point"] =
      Words(m.rows / 8, m.groups(), [&](size_t o, size_t g, size_t j) {
        return uint32_t{m.zeros[(8 * o + j) * m.groups() + g]};
      });
}

void AddGptq(const std::string& name, const Made& m, bool symmetric, uint32_t less, Tensors& to) {
  to[name + ".qweight"] = Words(m.columns / 8, m.rows, [&](size_t w, size_t o, size_t j) {
    return uint32_t{m.codes[o * m.columns + 8 * w + j]};
  });
  to[name + ".qzeros"] = Words(m.groups(), m.rows / 8, [&](size_t g, size_t o, size_t j) {
    return (symmetric ? 8u : m.zeros[(8 * o + j) * m.groups() + g]) - less;
  });
  to[name + ".scales"] = Tensor(DType::kF16, {Dim(m.groups()), Dim(m.rows)}, Transposed(m));
  std::vector<int32_t> index;
  for (size_t i = 0; i < m.columns; ++i) index.push_back(static_cast<int32_t>(i / m.group));
  to[name + ".g_idx"] = Tensor(DType::kI32, {Dim(m.columns)}, index);
}

void AddAwq(const std::string& name, const Made& m, Tensors& to) {
  constexpr size_t kOrder[] = {0, 2, 4, 6, 1, 3, 5, 7};
  to[name + ".qweight"] = Words(m.columns, m.rows / 8, [&](size_t i, size_t o, size_t p) {
    return uint32_t{m.codes[(8 * o + kOrder[p]) * m.columns + i]};
  });
  to[name + ".qzeros"] = Words(m.groups(), m.rows / 8, [&](size_t g, size_t o, size_t p) {
    return uint32_t{m.zeros[(8 * o + kOrder[p]) * m.groups() + g]};
  });
  to[name + ".scales"] = Tensor(DType::kF16, {Dim(m.groups()), Dim(m.rows)}, Transposed(m));
}

std::vector<uint8_t> Pairs(const std::vector<uint8_t>& codes) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i < codes.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(codes[i] | codes[i + 1] << 4));
  }
  return bytes;
}

void AddPackedMxFp4(const std::string& name, const Made& m, Tensors& to) {
  to[name + ".weight_packed"] =
      Tensor(DType::kU8, {Dim(m.rows), Dim(m.columns / 2)}, Pairs(m.codes));
  to[name + ".weight_scale"] = Tensor(DType::kU8, {Dim(m.rows), Dim(m.columns / 32)}, m.exponents);
}

}  // namespace atelier::testing
