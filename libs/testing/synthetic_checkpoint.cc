#include "libs/testing/synthetic_checkpoint.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numbers>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "libs/base/check.h"
#include "libs/base/float16.h"
#include "libs/checkpoint/tensor_list.h"
#include "nlohmann/json.hpp"

namespace atelier::testing {
namespace {

using nlohmann::json;

// SplitMix64: one addition and a mix per number, the same on every platform.
class Random {
 public:
  // Seeded by the tensor's name too, so a tensor keeps its values whatever else is written.
  Random(uint64_t seed, const std::string& name) : state_(seed * 0x9e3779b97f4a7c15u) {
    for (char c : name) state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }

  double Normal() {  // Box-Muller
    const double radius = std::sqrt(-2.0 * std::log(1.0 - Uniform()));
    return radius * std::cos(2.0 * std::numbers::pi * Uniform());
  }

 private:
  double Uniform() {  // [0, 1)
    state_ += 0x9e3779b97f4a7c15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
  }

  uint64_t state_;
};

// Nearest half, ties to even. Weights are small: no overflow.
uint16_t ToFloat16(float value) {
  const double magnitude = std::abs(double{value});
  ATELIER_CHECK(magnitude < 65504.0);
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  // Halves are whole multiples of this step within the value's binade.
  const int exponent = std::max(magnitude > 0 ? std::ilogb(magnitude) : -15, -15);
  const int step = std::max(exponent, -14) - 10;
  const auto units = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, -step)));
  const uint32_t biased = exponent < -14 ? 0u : static_cast<uint32_t>(exponent + 14) << 10;
  return static_cast<uint16_t>(sign | (biased + units));
}

void AppendElement(DType dtype, float value, std::string& data) {
  char bytes[4];
  if (dtype == DType::kF32) {
    std::memcpy(bytes, &value, 4);
  } else {
    ATELIER_CHECK(dtype == DType::kBF16 || dtype == DType::kF16);
    const uint16_t bits = dtype == DType::kBF16 ? ToBFloat16(value).bits : ToFloat16(value);
    std::memcpy(bytes, &bits, 2);
  }
  data.append(bytes, DTypeBytes(dtype));
}

RawTensor RandomTensor(const SyntheticSpec& spec, const PromisedTensor& promised) {
  const bool is_bias = absl::EndsWith(promised.name, "bias");
  const bool is_norm = promised.shape.size() == 1 && !is_bias;
  RawTensor tensor;
  tensor.dtype =
      absl::EndsWith(promised.name, "e_score_correction_bias") ? DType::kF32 : spec.dtype;
  tensor.shape = promised.shape;
  int64_t count = 1;
  for (int64_t dim : promised.shape) count *= dim;
  tensor.data.reserve(static_cast<size_t>(count) * DTypeBytes(tensor.dtype));
  Random random(spec.seed, promised.name);
  for (int64_t i = 0; i < count; ++i) {
    const double z = random.Normal();
    const double value = is_norm ? 1.0 + 0.1 * z : spec.weight_scale * z;
    AppendElement(tensor.dtype, static_cast<float>(value), tensor.data);
  }
  return tensor;
}

std::vector<PromisedTensor> AllTensors(const ModelConfig& config, const json& object) {
  std::vector<PromisedTensor> all = FrontendTensors(config);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (!config.is_moe_layer[static_cast<size_t>(layer)]) continue;
    for (int expert = 0; expert < config.moe.num_experts; ++expert) {
      for (PromisedTensor& tensor : ExpertTensorsAlone(config, layer, expert)) {
        all.push_back(std::move(tensor));
      }
    }
  }
  // A sample of a multi-token-prediction layer, which readers have to skip.
  if (object.value("num_nextn_predict_layers", 0) > 0) {
    all.push_back({LayerPrefix(config.num_layers) + "eh_proj.weight",
                   {config.hidden_size, int64_t{2} * config.hidden_size}});
    all.push_back({LayerPrefix(config.num_layers) + "enorm.weight", {config.hidden_size}});
  }
  return all;
}

void WriteText(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  ATELIER_CHECK(file.good());
}

std::string Patched(const json& base, const std::string& merge_patch_json) {
  json config = base;
  config.merge_patch(json::parse(merge_patch_json));
  return config.dump(2);
}

json SharedTinyConfig() {
  return {{"hidden_act", "silu"},      {"hidden_size", 256},
          {"num_hidden_layers", 4},    {"num_attention_heads", 8},
          {"num_key_value_heads", 2},  {"head_dim", 64},
          {"vocab_size", 512},         {"max_position_embeddings", 4096},
          {"intermediate_size", 512},  {"norm_topk_prob", true},
          {"rope_scaling", nullptr},   {"tie_word_embeddings", false},
          {"torch_dtype", "bfloat16"}, {"bos_token_id", 1},
          {"eos_token_id", 2},         {"pad_token_id", 0}};
}

}  // namespace

void WriteSafetensors(const std::string& path, const std::map<std::string, RawTensor>& tensors) {
  json header = json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", std::string(DTypeName(tensor.dtype))},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.data.size()}}};
    data += tensor.data;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // keeps tensors aligned, as the usual writers do
  const uint64_t length = text.size();
  static_assert(std::endian::native == std::endian::little);
  std::string prefix(sizeof(length), '\0');
  std::memcpy(prefix.data(), &length, sizeof(length));
  WriteText(path, prefix + text + data);
}

std::string TinyQwen3MoeConfig(const std::string& merge_patch_json) {
  json config = SharedTinyConfig();
  config.update({{"architectures", {"Qwen3MoeForCausalLM"}},
                 {"model_type", "qwen3_moe"},
                 {"attention_bias", false},
                 {"decoder_sparse_step", 1},
                 {"mlp_only_layers", json::array()},
                 {"num_experts", 8},
                 {"num_experts_per_tok", 2},
                 {"moe_intermediate_size", 256},
                 {"rms_norm_eps", 1e-6},
                 {"rope_theta", 1000000.0},
                 {"sliding_window", nullptr},
                 {"use_sliding_window", false}});
  return Patched(config, merge_patch_json);
}

std::string TinyGlm4MoeConfig(const std::string& merge_patch_json) {
  json config = SharedTinyConfig();
  config.update({{"architectures", {"Glm4MoeForCausalLM"}},
                 {"model_type", "glm4_moe"},
                 {"attention_bias", true},
                 {"use_qk_norm", true},
                 {"partial_rotary_factor", 0.5},
                 {"first_k_dense_replace", 1},
                 {"n_routed_experts", 16},
                 {"num_experts_per_tok", 4},
                 {"moe_intermediate_size", 192},
                 {"n_shared_experts", 1},
                 {"n_group", 1},
                 {"topk_group", 1},
                 {"routed_scaling_factor", 2.5},
                 {"num_nextn_predict_layers", 1},
                 {"rms_norm_eps", 1e-5},
                 {"rope_theta", 1000000.0}});
  return Patched(config, merge_patch_json);
}

void WriteSyntheticCheckpoint(const std::string& directory, const SyntheticSpec& spec) {
  ATELIER_CHECK(spec.num_files >= 1);
  const absl::StatusOr<ModelConfig> config = ParseModelConfig(spec.config_json);
  ATELIER_CHECK(config.ok());
  std::filesystem::create_directories(directory);
  WriteText(directory + "/config.json", spec.config_json);
  WriteText(directory + "/generation_config.json",
            json{{"eos_token_id", config->eos_token_ids}}.dump());

  const auto num_files = static_cast<size_t>(spec.num_files);
  std::vector<std::map<std::string, RawTensor>> files(num_files);
  json weight_map = json::object();
  size_t next = 0;
  for (const PromisedTensor& promised : AllTensors(*config, json::parse(spec.config_json))) {
    const size_t file = next++ % num_files;
    files[file][promised.name] = RandomTensor(spec, promised);
    weight_map[promised.name] =
        absl::StrFormat("model-%05d-of-%05d.safetensors", file + 1, num_files);
  }
  if (num_files == 1) return WriteSafetensors(directory + "/model.safetensors", files[0]);
  for (size_t file = 0; file < num_files; ++file) {
    WriteSafetensors(
        directory + absl::StrFormat("/model-%05d-of-%05d.safetensors", file + 1, num_files),
        files[file]);
  }
  WriteText(directory + "/model.safetensors.index.json",
            json{{"metadata", json::object()}, {"weight_map", weight_map}}.dump());
}

}  // namespace atelier::testing
