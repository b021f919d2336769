#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "libs/model/dtype.h"

namespace atelier::testing {

struct RawTensor {
  DType dtype = DType::kBF16;
  std::vector<int64_t> shape;
  std::string data;  // little-endian bytes
};

// Writes one safetensors file exactly as given, without checking it (tests of broken files pass
// nonsense).
void WriteSafetensors(const std::string& path, const std::map<std::string, RawTensor>& tensors);

// A tiny random model of known properties.
struct SyntheticSpec {
  // Text of config.json. TinyQwen3MoeConfig() and TinyGlm4MoeConfig() are the usual ones.
  std::string config_json;
  uint64_t seed = 1;
  DType dtype = DType::kBF16;  // of matrices and norms; correction biases are F32
  int num_files = 1;           // 1: model.safetensors; more: sharded with an index
  double weight_scale = 0.05;  // standard deviation of matrices; norms are 1 + 0.1 z
};

// H256 L4 nh8 nkv2 d64 E8 K2 I256 vocab 512 (nh * d != H); fields can be overridden by JSON merge
// patch.
std::string TinyQwen3MoeConfig(const std::string& merge_patch_json = "{}");
// H256 L4 nh8 nkv2 d64 partial rotary 0.5, first layer dense, E16 K4 I192, one shared expert,
// scaling 2.5, qk-norm, qkv bias.
std::string TinyGlm4MoeConfig(const std::string& merge_patch_json = "{}");

// Writes config.json, generation_config.json and safetensors of every tensor the config promises
// into `directory` (created).
void WriteSyntheticCheckpoint(const std::string& directory, const SyntheticSpec& spec);

}  // namespace atelier::testing
