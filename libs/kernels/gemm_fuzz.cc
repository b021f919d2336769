#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "libs/base/check.h"
#include "libs/kernels/kernel_table.h"
#include "libs/testing/gemm_runner.h"
#include "libs/testing/packed_weights.h"
#include "libs/testing/random_quant_source.h"
#include "libs/testing/supported_kernels.h"

// Gives the same product to every kernel of a method that this host can run, AMX by the emulator,
// and compares with the scalar one. Corpus: testdata/fuzz_corpus, which also runs as a unit test.

namespace atelier {
namespace {

using testing::PackedWeights;
using testing::PreparedRows;
using testing::RandomBf16Values;
using testing::RandomFp8Source;
using testing::RandomQuantSource;
using testing::RunGemm;

// What an input means: its first bytes are these, the rest goes into codes and activations.
struct Product {
  Method method;
  int rows, n, k;
  uint32_t seed;
  absl::Span<const uint8_t> bytes;

  uint8_t Byte(size_t i) const { return bytes[i % bytes.size()]; }
};
constexpr size_t kHeaderBytes = 6;

Product ProductOf(absl::Span<const uint8_t> input) {
  Product product{};
  product.method = AllMethods()[input[0] % AllMethods().size()];
  product.rows = input[1] % 70;
  product.n = input[2] % 80;
  const int multiple = KMultiple(product.method);
  const int k = 1 + (input[3] + 256 * input[4]) % 640;
  product.k = (k + multiple - 1) / multiple * multiple;
  product.seed = input[5];
  product.bytes = input.subspan(kHeaderBytes);
  return product;
}

// Random scales, and codes that the input changes. With `magnitudes` FP8 weights without signs.
class FuzzedSource final : public QuantSource {
 public:
  FuzzedSource(const QuantSource& random, const Product& product, bool magnitudes)
      : random_(random), product_(product), magnitudes_(magnitudes) {}

  void Read(int row, int column, int count, QuantBlock& out) const override {
    random_.Read(row, column, count, out);
    const BlockFormat* format = BlockFormatOf(product_.method);
    const int mask = format == nullptr ? 0xff : (1 << format->bits) - 1;
    for (int i = 0; i < count; ++i) {
      const size_t at = static_cast<size_t>(row * product_.k + column + i);
      int code = out.codes[i] ^ (product_.Byte(at) & mask);
      if (format == nullptr && (code & 0x7f) == 0x7f) code ^= 1;  // not NaN
      if (magnitudes_) code &= 0x7f;
      out.codes[i] = static_cast<uint8_t>(code);
    }
    if (!magnitudes_) return;
    for (float& scale : out.float_scales) scale = std::fabs(scale);
  }

 private:
  const QuantSource& random_;
  const Product& product_;
  const bool magnitudes_;
};

// Normal values of bf16, some of them moved by many powers of two.
std::vector<float> Values(const Product& product, int rows, uint32_t seed, bool magnitudes) {
  std::vector<float> values = RandomBf16Values(static_cast<size_t>(rows * product.k), seed);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::ldexp(values[i], static_cast<int8_t>(product.Byte(i)) / 8);
    if (magnitudes) values[i] = std::fabs(values[i]);
  }
  return values;
}

PackedWeights Weights(const Product& product, bool magnitudes) {
  const Method method = product.method;
  if (BlockFormatOf(method) != nullptr) {
    const RandomQuantSource random(method, product.seed);
    return PackedWeights(method, product.n, product.k, FuzzedSource(random, product, magnitudes));
  }
  if (IsFp8(method)) {
    const RandomFp8Source random(product.seed);
    return PackedWeights(method, product.n, product.k, FuzzedSource(random, product, magnitudes));
  }
  return PackedWeights(method, product.n, product.k,
                       Values(product, product.n, product.seed + 1, magnitudes));
}

std::vector<float> Run(const KernelEntry& entry, const Product& product, bool magnitudes) {
  const PackedWeights weights = Weights(product, magnitudes);
  const PreparedRows rows(product.method,
                          Values(product, product.rows, product.seed + 2, magnitudes), product.rows,
                          product.k);
  return RunGemm(entry, weights.matrix(), rows.rows(), 0, weights.matrix().num_panels());
}

// Integer methods give the same bits on every ISA.
bool IsExact(Method method) { return method != Method::kBF16 && !IsFp8(method); }

// Roundings that a term goes through at most (docs/numerics.md).
int Roundings(const Product& product) {
  if (product.method == Method::kBF16) return product.k + 1;
  const int group = product.method == Method::kMXFP8 ? 32 : 128;
  return std::min(product.k, group) + product.k / group + 3;
}

// How far two kernels may be apart: twice the bound of one, `terms` being the sum of the magnitudes
// as the scalar kernel adds it, which has an error of its own. No scale exceeds `kLargestScale`.
double MostApart(const Product& product, double terms) {
  constexpr double kLargestScale = 2.0;
  const double roundings = Roundings(product) * 0x1p-24;
  const double flushed = product.k * (kLargestScale + 1) * 0x1p-125;
  return 2 * (roundings / (1 - roundings) * terms / (1 - roundings) + flushed);
}

void Compare(const Product& product) {
  const std::vector<KernelEntry> kernels = testing::SupportedKernels(product.method);
  const std::vector<float> want = Run(kernels.back(), product, false);
  const bool exact = IsExact(product.method);
  const std::vector<float> terms = exact ? want : Run(kernels.back(), product, true);
  for (const KernelEntry& entry : kernels) {
    const std::vector<float> got = Run(entry, product, false);
    for (size_t i = 0; i < want.size(); ++i) {
      const double apart = std::fabs(static_cast<double>(got[i]) - want[i]);
      const bool agrees =
          exact ? testing::SameBits(&got[i], &want[i], 1) : apart <= MostApart(product, terms[i]);
      if (agrees) continue;
      std::fprintf(stderr, "%s %s rows=%d n=%d k=%d: element %zu is %g, scalar %g\n",
                   std::string(MethodName(product.method)).c_str(), entry.isa, product.rows,
                   product.n, product.k, i, static_cast<double>(got[i]),
                   static_cast<double>(want[i]));
      ATELIER_CHECK(agrees);
    }
  }
}

}  // namespace
}  // namespace atelier

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size <= atelier::kHeaderBytes) return 0;
  atelier::Compare(atelier::ProductOf({data, size}));
  return 0;
}
