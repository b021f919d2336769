#include "libs/model/read_quantization.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace atelier {
namespace {

using nlohmann::json;

constexpr char kPlace[] = "config.json: quantization_config";
constexpr IntRange kBits{1, 64};
constexpr IntRange kGroupSizes{-1, 1 << 20};

absl::Status Unsupported(absl::string_view key, absl::string_view value, absl::string_view valid) {
  return absl::UnimplementedError(
      absl::StrCat(kPlace, ".", key, "=", value, " is not supported by this build: ", valid));
}

void RequireFourBits(int bits, ConfigFields& fields) {
  if (bits != 4) fields.Fail(Unsupported("bits", absl::StrCat(bits), "only 4"));
}

// Groups that the kernels have; -1 = the whole row.
int GroupSize(int size, ConfigFields& fields) {
  if (size == -1) return 0;
  if (size != 32 && size != 64 && size != 128) {
    fields.Fail(Unsupported("group_size", absl::StrCat(size), "only 32, 64, 128 and -1"));
  }
  return size;
}

QuantizationConfig ReadGptq(ConfigFields& fields) {
  RequireFourBits(fields.RequireInt({"bits"}, kBits), fields);
  if (fields.Bool({"desc_act"}, false)) {
    fields.Fail(Unsupported("desc_act", "true",
                            "groups of inputs in the order of their activations (act-order) are "
                            "not consecutive; use a checkpoint quantised with desc_act=false"));
  }
  const std::string version = fields.String({"checkpoint_format"}, "gptq");
  if (version != "gptq" && version != "gptq_v2") {
    fields.Fail(Unsupported("checkpoint_format", version, "only gptq and gptq_v2"));
  }
  QuantizationConfig config;
  config.format = QuantFormat::kGptq;
  config.group_size = GroupSize(fields.RequireInt({"group_size"}, kGroupSizes), fields);
  config.symmetric = fields.Bool({"sym"}, true);
  config.zero_offset = version == "gptq" ? 1 : 0;
  return config;
}

QuantizationConfig ReadAwq(ConfigFields& fields) {
  RequireFourBits(fields.RequireInt({"bits", "w_bit"}, kBits), fields);
  const std::string version = absl::AsciiStrToLower(fields.String({"version"}, "gemm"));
  if (version != "gemm") fields.Fail(Unsupported("version", version, "only gemm"));
  if (!fields.Bool({"zero_point"}, true)) {
    fields.Fail(Unsupported("zero_point", "false", "only true"));
  }
  QuantizationConfig config;
  config.format = QuantFormat::kAwq;
  config.group_size =
      GroupSize(fields.RequireInt({"group_size", "q_group_size"}, kGroupSizes), fields);
  config.symmetric = false;
  return config;
}

QuantizationConfig ReadPackedInt4(ConfigFields& weights) {
  RequireFourBits(weights.RequireInt({"num_bits"}, kBits), weights);
  const std::string type = weights.String({"type"}, "int");
  if (type != "int") weights.Fail(Unsupported("weights.type", type, "only int"));
  // "weight" and "static" leave the inputs' order as it is; "group" permutes them.
  const std::string order = weights.String({"actorder"}, "static");
  if (order != "static" && order != "weight") {
    weights.Fail(Unsupported("weights.actorder", order, "only static and weight"));
  }
  const std::string strategy = weights.String({"strategy"}, "group");
  if (strategy != "group" && strategy != "channel") {
    weights.Fail(Unsupported("weights.strategy", strategy, "only group and channel"));
  }
  QuantizationConfig config;
  config.format = QuantFormat::kPackedInt4;
  config.group_size = strategy == "channel"
                          ? 0
                          : GroupSize(weights.RequireInt({"group_size"}, kGroupSizes), weights);
  config.symmetric = weights.Bool({"symmetric"}, true);
  return config;
}

bool Same(const QuantizationConfig& a, const QuantizationConfig& b) {
  return a.format == b.format && a.group_size == b.group_size && a.symmetric == b.symmetric;
}

// FP8 as DeepSeek-V3 publishes it.
QuantizationConfig ReadFp8(ConfigFields& fields) {
  const std::vector<int64_t> block = fields.Ints({"weight_block_size"}, {1, 1 << 20});
  if (block != std::vector<int64_t>{128, 128}) {
    fields.Fail(Unsupported("weight_block_size", absl::StrCat("[", absl::StrJoin(block, ", "), "]"),
                            "only [128, 128]"));
  }
  return {QuantFormat::kFp8Blocks, 128, true, 0};
}

QuantizationConfig ReadFp8Rows(ConfigFields& weights) {
  const int bits = weights.RequireInt({"num_bits"}, kBits);
  const std::string type = weights.String({"type"}, "float");
  if (bits != 8 || type != "float") {
    weights.Fail(Unsupported("weights.type", absl::StrCat(type, bits), "only 8-bit float"));
  }
  const std::string strategy = weights.String({"strategy"}, "channel");
  if (strategy != "channel") {
    weights.Fail(Unsupported("weights.strategy", strategy, "only channel"));
  }
  return {QuantFormat::kFp8Rows, 0, true, 0};
}

// The weights of one group of modules of compressed-tensors.
QuantizationConfig ReadGroup(const json& group, const std::string& place, bool floats,
                             ConfigFields& fields) {
  if (!group.is_object()) {
    fields.Fail(absl::InvalidArgumentError(absl::StrCat(place, " must be an object")));
    return {};
  }
  ConfigFields inner(group, place);
  const json* weights = inner.Object({"weights"});
  if (weights == nullptr) {
    fields.Fail(absl::InvalidArgumentError(absl::StrCat(place, ": weights is missing")));
    return {};
  }
  ConfigFields read(*weights, absl::StrCat(place, ".weights"));
  const QuantizationConfig config = floats ? ReadFp8Rows(read) : ReadPackedInt4(read);
  fields.Fail(read.status());
  return config;
}

QuantizationConfig ReadCompressedTensors(ConfigFields& fields) {
  const std::string format = fields.String({"format"}, "(not named)");
  if (format == "mxfp4-pack-quantized") return {QuantFormat::kPackedMxFp4, 32, true, 0};
  if (format != "pack-quantized" && format != "float-quantized") {
    fields.Fail(Unsupported("format", format,
                            "only pack-quantized, mxfp4-pack-quantized and float-quantized"));
    return {};
  }
  const json* groups = fields.Object({"config_groups"});
  if (groups == nullptr || groups->empty()) {
    fields.Fail(absl::InvalidArgumentError(absl::StrCat(kPlace, ": config_groups is missing")));
    return {};
  }
  std::optional<QuantizationConfig> common;
  for (const auto& [name, group] : groups->items()) {
    const QuantizationConfig config = ReadGroup(
        group, absl::StrCat(kPlace, ".config_groups.", name), format == "float-quantized", fields);
    if (common && !Same(*common, config)) {
      fields.Fail(Unsupported("config_groups", "(several)", "they must quantise alike"));
    }
    common = config;
  }
  return *common;
}

}  // namespace

QuantizationConfig ReadQuantization(ConfigFields& fields) {
  const json* object = fields.Object({"quantization_config"});
  if (object == nullptr) return {};
  ConfigFields inner(*object, kPlace);
  const std::string method = inner.String({"quant_method"}, "(not named)");
  QuantizationConfig config;
  if (method == "gptq") {
    config = ReadGptq(inner);
  } else if (method == "awq") {
    config = ReadAwq(inner);
  } else if (method == "compressed-tensors") {
    config = ReadCompressedTensors(inner);
  } else if (method == "mxfp4") {
    config = {QuantFormat::kMxFp4Blocks, 32, true, 0};
  } else if (method == "mxfp8") {
    config = {QuantFormat::kMxFp8, 32, true, 0};
  } else if (method == "fp8") {
    config = ReadFp8(inner);
  } else {
    inner.Fail(Unsupported("quant_method", method,
                           "it knows awq, compressed-tensors, fp8, gptq, mxfp4 and mxfp8"));
  }
  config.ignored_key = method == "compressed-tensors" ? "ignore" : "modules_to_not_convert";
  config.ignored = inner.Strings({config.ignored_key});
  fields.Fail(inner.status());
  return config;
}

}  // namespace atelier
