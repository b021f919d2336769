#include "libs/testing/synthetic_gguf.h"

#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "libs/base/check.h"
#include "libs/base/checked_math.h"
#include "libs/base/float16.h"
#include "libs/checkpoint/gguf_type.h"
#include "libs/checkpoint/tensor_floats.h"
#include "libs/checkpoint/tensor_list.h"
#include "libs/model/architectures.h"

namespace atelier::testing {
namespace {

template <typename T>
std::string Bits(T value) {
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

std::string Text(absl::string_view text) { return absl::StrCat(Bits<uint64_t>(text.size()), text); }

constexpr uint32_t kArray = 9;

const GgufType& TypeNamed(absl::string_view name) {
  for (uint32_t id = 0; id < 64; ++id) {
    const GgufType* type = FindGgufType(id);
    if (type != nullptr && type->name == name) return *type;
  }
  ATELIER_CHECK(false);
}

size_t Count(const std::vector<int64_t>& shape) {
  size_t count = 1;
  for (const int64_t dim : shape) count *= static_cast<size_t>(dim);
  return count;
}

// Where a block keeps its fp16 scales, and how large they are for weights of about 0.05.
struct Scales {
  std::vector<size_t> offsets;
  float size = 0;
};

Scales ScalesOf(absl::string_view type) {
  static const auto* const kScales = new std::map<std::string, Scales>{
      {"Q4_0", {{0}, 8e-3f}},    {"Q4_1", {{0, 2}, 8e-3f}}, {"Q5_0", {{0}, 4e-3f}},
      {"Q5_1", {{0, 2}, 4e-3f}}, {"Q8_0", {{0}, 6e-4f}},    {"Q2_K", {{80, 82}, 3e-3f}},
      {"Q3_K", {{108}, 1e-3f}},  {"Q4_K", {{0, 2}, 2e-4f}}, {"Q5_K", {{0, 2}, 1e-4f}},
      {"Q6_K", {{208}, 4e-5f}},  {"IQ4_NL", {{0}, 7e-4f}},  {"IQ4_XS", {{0}, 4e-5f}},
      {"IQ2_XXS", {{0}, 1e-3f}}, {"MXFP4", {{}, 0}},
  };
  return kScales->at(std::string(type));
}

std::string FloatBytes(const GgufType& type, const TensorView& tensor) {
  std::vector<float> values(Count(tensor.shape));
  ReadFloats(tensor, 0, values.size(), values.data());
  std::string bytes;
  for (const float value : values) {
    if (type.dtype == DType::kF32) {
      bytes += Bits(value);
    } else {
      bytes += Bits(type.dtype == DType::kBF16 ? ToBFloat16(value).bits : ToFloat16(value));
    }
  }
  return bytes;
}

// "model.layers.3.mlp.gate.weight" -> "blk.3.ffn_gate_inp.weight"; `second_norm` is what the
// architecture calls that of a layer.
std::string GgufName(absl::string_view published, absl::string_view second_norm) {
  std::string name =
      absl::StrReplaceAll(published, {{"model.embed_tokens", "token_embd"},
                                      {"model.norm", "output_norm"},
                                      {"lm_head", "output"},
                                      {"model.layers.", "blk."},
                                      {"post_attention_layernorm", second_norm},
                                      {"input_layernorm", "attn_norm"},
                                      {"self_attn.o_proj", "attn_output"},
                                      {"self_attn.q_proj", "attn_q"},
                                      {"self_attn.k_proj", "attn_k"},
                                      {"self_attn.v_proj", "attn_v"},
                                      {"self_attn.q_norm", "attn_q_norm"},
                                      {"self_attn.k_norm", "attn_k_norm"},
                                      {"mlp.gate.weight", "ffn_gate_inp.weight"},
                                      {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
                                      {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
                                      {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
                                      {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
                                      {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
                                      {"mlp.gate_proj", "ffn_gate"},
                                      {"mlp.up_proj", "ffn_up"},
                                      {"mlp.down_proj", "ffn_down"}});
  return name;
}

// Rows of q and k whose rotary pairs are halves of a head, put so that they are neighbours.
std::string Interleaved(const std::string& rows, int64_t head_dim, size_t row_bytes) {
  std::string result;
  for (size_t row = 0; row * row_bytes < rows.size(); ++row) {
    const auto dim = static_cast<size_t>(head_dim);
    const size_t in_head = row % dim;
    const size_t from = row - in_head + in_head / 2 + in_head % 2 * (dim / 2);
    result += rows.substr(from * row_bytes, row_bytes);
  }
  return result;
}

void AddMetadata(const ModelConfig& config, GgufWriter& writer) {
  const Architecture& row = *FindArchitecture(config.model_type);
  const bool sigmoid = config.moe.scoring == RouterScoring::kSigmoid;
  const std::string arch(row.gguf_name);
  const auto key = [&](absl::string_view name) { return absl::StrCat(arch, ".", name); };
  int dense = 0;
  while (!config.is_moe_layer[static_cast<size_t>(dense)]) ++dense;
  writer.Add("general.architecture", arch);
  writer.Add(key("block_count"), config.num_layers);
  writer.Add(key("context_length"), config.max_position_embeddings);
  writer.Add(key("embedding_length"), config.hidden_size);
  writer.Add(key("feed_forward_length"), row.experts_have_dense_width
                                             ? config.moe.intermediate_size
                                             : config.dense_intermediate_size);
  writer.Add(key("attention.head_count"), config.attention.num_heads);
  writer.Add(key("attention.head_count_kv"), config.attention.num_kv_heads);
  writer.Add(key("attention.key_length"), config.attention.head_dim);
  writer.Add(key("attention.value_length"), config.attention.head_dim);
  writer.Add(key("attention.layer_norm_rms_epsilon"), static_cast<float>(config.rms_norm_eps));
  writer.Add(key("rope.freq_base"), static_cast<float>(config.attention.rope_theta));
  writer.Add(key("rope.dimension_count"), config.attention.rotary_dim);
  writer.Add(key("expert_count"), config.moe.num_experts);
  writer.Add(key("expert_used_count"), config.moe.top_k);
  if (!row.experts_have_dense_width) {
    writer.Add(key("expert_feed_forward_length"), config.moe.intermediate_size);
  }
  writer.Add(key("expert_weights_norm"), config.moe.normalize_weights);
  writer.Add("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(config.eos_token_ids[0]));
  writer.Add("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(config.bos_token_id));
  writer.Add("tokenizer.ggml.padding_token_id", static_cast<uint32_t>(config.pad_token_id));
  if (config.moe.shared_gate) {
    writer.Add(key("expert_shared_feed_forward_length"), config.moe.shared_intermediate_size);
  }
  if (!sigmoid) return;
  writer.Add(key("leading_dense_block_count"), dense);
  writer.Add(key("expert_shared_count"),
             config.moe.shared_intermediate_size / config.moe.intermediate_size);
  writer.Add(key("expert_gating_func"), 2);
  writer.Add(key("expert_weights_scale"), static_cast<float>(config.moe.routed_scaling_factor));
}

}  // namespace

void GgufWriter::AddRaw(absl::string_view key, uint32_t type, absl::string_view bytes) {
  absl::StrAppend(&metadata_, Text(key), Bits(type), bytes);
  ++num_keys_;
}

void GgufWriter::Add(absl::string_view key, absl::string_view text) { AddRaw(key, 8, Text(text)); }
void GgufWriter::Add(absl::string_view key, uint32_t value) { AddRaw(key, 4, Bits(value)); }
void GgufWriter::Add(absl::string_view key, float value) { AddRaw(key, 6, Bits(value)); }
void GgufWriter::Add(absl::string_view key, bool value) {
  AddRaw(key, 7, Bits(static_cast<uint8_t>(value)));
}

void GgufWriter::Add(absl::string_view key, const std::vector<std::string>& texts) {
  std::string bytes = absl::StrCat(Bits<uint32_t>(8), Bits<uint64_t>(texts.size()));
  for (const std::string& text : texts) bytes += Text(text);
  AddRaw(key, kArray, bytes);
}

void GgufWriter::Add(absl::string_view key, const std::vector<int32_t>& values) {
  std::string bytes = absl::StrCat(Bits<uint32_t>(5), Bits<uint64_t>(values.size()));
  for (const int32_t value : values) bytes += Bits(value);
  AddRaw(key, kArray, bytes);
}

std::string GgufWriter::Header() const {
  std::string header =
      absl::StrCat("GGUF", Bits(version), Bits<uint64_t>(tensors.size() + extra_tensors),
                   Bits<uint64_t>(num_keys_ + extra_keys), metadata_);
  uint64_t offset = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    header += Text(tensor.name) + Bits(static_cast<uint32_t>(tensor.shape.size()));
    for (auto dim = tensor.shape.rbegin(); dim != tensor.shape.rend(); ++dim) {
      header += Bits(static_cast<uint64_t>(*dim));
    }
    header += Bits(tensor.type) + Bits(change_offset ? change_offset(i, offset) : offset);
    offset += RoundUp<uint64_t>(tensor.data.size(), alignment);
  }
  return header;
}

std::string GgufWriter::Bytes() const {
  std::string bytes = Header();
  bytes.resize(RoundUp<size_t>(bytes.size(), alignment));
  for (const Tensor& tensor : tensors) {
    bytes += tensor.data;
    bytes.resize(RoundUp<size_t>(bytes.size(), alignment));
  }
  return bytes;
}

void GgufWriter::Write(const std::string& path) const {
  std::ofstream file(path, std::ios::binary);
  file << Bytes();
  file.close();
  ATELIER_CHECK(file.good());
}

void GgufWriter::WriteSplit(const std::string& stem, int parts) const {
  for (int part = 0; part < parts; ++part) {
    GgufWriter writer = *this;
    if (part > 0) {
      writer.metadata_.clear();
      writer.num_keys_ = 0;
    }
    writer.AddRaw("split.no", 2, Bits(static_cast<uint16_t>(part)));
    writer.AddRaw("split.count", 2, Bits(static_cast<uint16_t>(parts)));
    writer.AddRaw("split.tensors.count", 5, Bits(static_cast<int32_t>(tensors.size())));
    const auto first = [&](int p) {
      return static_cast<std::ptrdiff_t>(tensors.size()) * p / parts;
    };
    writer.tensors = {tensors.begin() + first(part), tensors.begin() + first(part + 1)};
    writer.Write(absl::StrFormat("%s-%05d-of-%05d.gguf", stem, part + 1, parts));
  }
}

std::string RandomGgufBlocks(absl::string_view name, size_t elements, uint64_t seed) {
  const GgufType& type = TypeNamed(name);
  const Scales scales = ScalesOf(name);
  std::mt19937_64 random(seed);
  std::string bytes;
  for (size_t i = 0; i < elements / type.elements; ++i) {
    std::string block;
    while (block.size() < type.bytes) block.push_back(static_cast<char>(random()));
    for (const size_t offset : scales.offsets) {
      const float factor = 0.5f + static_cast<float>(random() % 1024) / 1024.0f;
      block.replace(
          offset, 2,
          Bits(ToFloat16(random() % 2 == 0 ? scales.size * factor : -scales.size * factor)));
    }
    if (name == "MXFP4") block[0] = static_cast<char>(119 + random() % 4);
    bytes += block;
  }
  return bytes;
}

GgufWriter GgufOf(const Checkpoint& checkpoint,
                  const std::function<std::string(absl::string_view name)>& type_of) {
  const ModelConfig& config = checkpoint.config();
  GgufWriter writer;
  AddMetadata(config, writer);
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape,
                       const std::vector<TensorView>& parts, bool is_float) {
    const GgufType& type = TypeNamed(is_float ? "F32" : type_of(name));
    std::string data;
    for (const TensorView& part : parts) {
      data += type.dtype ? FloatBytes(type, part)
                         : RandomGgufBlocks(type.name, Count(part.shape), writer.tensors.size());
    }
    const bool rotated =
        absl::EndsWith(name, "attn_q.weight") || absl::EndsWith(name, "attn_k.weight");
    if (rotated && FindArchitecture(config.model_type)->gguf_interleaved_rope) {
      data =
          Interleaved(data, config.attention.head_dim, data.size() / static_cast<size_t>(shape[0]));
    }
    writer.AddTensor({name, type.id, shape, data});
  };
  const std::string second_norm =
      config.model_type == "glm4_moe" ? "post_attention_norm" : "ffn_norm";
  for (const PromisedTensor& tensor : FrontendTensors(config)) {
    const std::string name = GgufName(tensor.name, second_norm);
    const bool is_float = tensor.shape.size() == 1 || absl::EndsWith(name, "ffn_gate_inp.weight");
    const bool is_gate = absl::EndsWith(name, "ffn_gate_inp_shexp.weight");
    add(name, is_gate ? std::vector<int64_t>{config.hidden_size} : tensor.shape,
        {checkpoint.Find(tensor.name).value()}, is_float || is_gate);
  }
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (!config.is_moe_layer[static_cast<size_t>(layer)]) continue;
    std::vector<TensorView> gate, up, down;
    for (int expert = 0; expert < config.moe.num_experts; ++expert) {
      const ExpertTensors tensors = FindExpert(checkpoint, layer, expert).value();
      gate.push_back(tensors.gate.tensor);
      up.push_back(tensors.up.tensor);
      down.push_back(tensors.down.tensor);
    }
    const int64_t experts = config.moe.num_experts, inner = config.moe.intermediate_size;
    const int64_t hidden = config.hidden_size;
    const std::string prefix = absl::StrCat("blk.", layer, ".ffn_");
    add(prefix + "gate_exps.weight", {experts, inner, hidden}, gate, false);
    add(prefix + "up_exps.weight", {experts, inner, hidden}, up, false);
    add(prefix + "down_exps.weight", {experts, hidden, inner}, down, false);
  }
  return writer;
}

}  // namespace atelier::testing
