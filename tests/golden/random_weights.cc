#include "tests/golden/random_weights.h"

#include <openssl/evp.h>

#include <cstring>
#include <fstream>
#include <map>
#include <memory>

#include "absl/strings/escaping.h"
#include "libs/base/check.h"
#include "libs/base/float16.h"

namespace atelier::golden {
namespace {

uint64_t Fnv1a64(const std::string& text) {
  uint64_t value = 0xcbf29ce484222325u;
  for (char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return value;
}

uint64_t SplitMix64(uint64_t seed, uint64_t index) {
  uint64_t z = seed + 0x9e3779b97f4a7c15u * (index + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Near normal around 0: exact in float, so both languages round alike from here on.
float CentredSum(uint64_t word) {
  int sum = -2 * 65535;
  for (int shift = 0; shift < 64; shift += 16) sum += static_cast<int>((word >> shift) & 0xffffu);
  return static_cast<float>(sum);
}

std::string Sha256(const std::map<std::string, testing::RawTensor>& tensors) {
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                  &EVP_MD_CTX_free);
  ATELIER_CHECK(EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1);
  for (const auto& [name, tensor] : tensors) {
    ATELIER_CHECK(EVP_DigestUpdate(context.get(), tensor.data.data(), tensor.data.size()) == 1);
  }
  std::string digest(32, '\0');
  ATELIER_CHECK(EVP_DigestFinal_ex(context.get(), reinterpret_cast<unsigned char*>(digest.data()),
                                   nullptr) == 1);
  return absl::BytesToHexString(digest);
}

}  // namespace

testing::RawTensor Generate(const RandomTensor& tensor) {
  testing::RawTensor raw{.dtype = tensor.dtype, .shape = tensor.shape, .data = {}};
  uint64_t count = 1;
  for (int64_t dim : tensor.shape) count *= static_cast<uint64_t>(dim);
  const size_t width = DTypeBytes(tensor.dtype);
  raw.data.resize(count * width);
  const uint64_t seed = Fnv1a64(tensor.name);
  for (uint64_t i = 0; i < count; ++i) {
    // Two statements: the product has to be rounded before the sum.
    const float scaled = CentredSum(SplitMix64(seed, i)) * tensor.scale;
    const float value = scaled + tensor.mean;
    const BFloat16 rounded = ToBFloat16(value);
    const void* bytes = tensor.dtype == DType::kF32 ? static_cast<const void*>(&value) : &rounded;
    std::memcpy(raw.data.data() + i * width, bytes, width);
  }
  return raw;
}

std::string WriteTinyCheckpoint(const TinyGolden& golden, const std::string& directory) {
  std::map<std::string, testing::RawTensor> tensors;
  for (const RandomTensor& tensor : golden.tensors) tensors[tensor.name] = Generate(tensor);
  testing::WriteSafetensors(directory + "/model.safetensors", tensors);
  std::ofstream config(directory + "/config.json", std::ios::binary);
  config << golden.config_json;
  config.close();
  ATELIER_CHECK(config.good());
  return Sha256(tensors);
}

}  // namespace atelier::golden
