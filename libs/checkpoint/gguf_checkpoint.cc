#include "libs/checkpoint/gguf_checkpoint.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/gguf_names.h"
#include "libs/checkpoint/gguf_set.h"
#include "libs/checkpoint/mapped_checkpoint.h"
#include "libs/checkpoint/quoted_name.h"
#include "libs/model/gguf_config.h"

namespace atelier {
namespace {

bool HasTensor(const GgufSet& set, absl::string_view name) {
  return std::any_of(set.files.begin(), set.files.end(), [name](const GgufFile& file) {
    const std::vector<GgufTensor>& tensors = file.header.tensors;
    return std::any_of(tensors.begin(), tensors.end(),
                       [name](const GgufTensor& tensor) { return tensor.name == name; });
  });
}

// Part of a layer that predicts further tokens.
bool IsPredictor(const GgufTensor& tensor) { return absl::StrContains(tensor.name, ".nextn."); }

// What the metadata leave to the tensors.
GgufTensorFacts FactsOf(const GgufSet& set) {
  GgufTensorFacts facts;
  facts.has_output = HasTensor(set, "output.weight");
  facts.has_qk_norm = HasTensor(set, "blk.0.attn_q_norm.weight");
  facts.has_qkv_bias = HasTensor(set, "blk.0.attn_q.bias");
  facts.has_output_bias = HasTensor(set, "blk.0.attn_output.bias");
  for (const GgufFile& file : set.files) {
    for (const GgufTensor& tensor : file.header.tensors) {
      if (tensor.name == "token_embd.weight") facts.vocab_size = tensor.shape[0];
      // One is enough: other layers have the like.
      if (facts.unknown.empty() && !IsPredictor(tensor) && !PublishedName(tensor.name)) {
        facts.unknown.push_back(absl::StrCat("tensor ", QuotedName(tensor.name)));
      }
    }
  }
  return facts;
}

// Layers beyond the last one predict further tokens; they are no part of the model that is served.
bool IsSkipped(const GgufTensor& tensor, const ModelConfig& config) {
  const std::optional<int> layer = GgufLayer(tensor.name);
  return layer && *layer >= config.num_layers;
}

// Of a block count that is too small the rest would be dropped without a word.
absl::Status CheckLayers(const GgufSet& set) {
  GgufFields fields(set.metadata());
  const std::string key =
      absl::StrCat(fields.RequireString("general.architecture"), ".block_count");
  const int blocks = fields.RequireInt(key, {1, INT32_MAX});
  ATELIER_RETURN_IF_ERROR(fields.status());
  for (const GgufFile& file : set.files) {
    for (const GgufTensor& tensor : file.header.tensors) {
      if (GgufLayer(tensor.name).value_or(0) < blocks) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(file.name, ": tensor ", QuotedName(tensor.name), " is of a layer that ", key,
                       "=", blocks, " does not count"));
    }
  }
  return absl::OkStatus();
}

absl::Status AddTensor(const GgufTensor& tensor, size_t shard, MappedContents& contents) {
  if (IsSkipped(tensor, contents.config)) return absl::OkStatus();
  // What the frontend does not know is in beyond_frontend; workers must know all of theirs.
  std::optional<std::string> name = PublishedName(tensor.name);
  if (!name && absl::StrContains(tensor.name, "_exps")) {
    return absl::UnimplementedError(absl::StrCat(
        contents.shards[shard].file, ": tensor ", QuotedName(tensor.name),
        " has no part in what this build computes for model_type=", contents.config.model_type));
  }
  MappedContents::Entry entry;
  entry.shard = shard;
  entry.dtype = tensor.type->dtype.value_or(DType::kU8);
  entry.blocks = tensor.type->dtype ? nullptr : tensor.type;
  entry.shape = tensor.shape;
  // A vector here, a matrix of one row there.
  if (absl::EndsWith(tensor.name, "ffn_gate_inp_shexp.weight") && entry.shape.size() == 1) {
    entry.shape.insert(entry.shape.begin(), 1);
  }
  entry.begin = tensor.begin;
  entry.size = tensor.end - tensor.begin;
  return contents.Add(std::move(name).value_or(tensor.name), std::move(entry));
}

// Bytes are compared without their names, so a set and its first file do not have one digest.
std::string DigestOf(const GgufSet& set) {
  std::vector<std::string> parts;
  for (const GgufFile& file : set.files) {
    parts.push_back(FileDigest(file.mapping.bytes(), file.header.data_begin));
  }
  return CheckpointDigest("", std::move(parts));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenGgufCheckpoint(const std::string& path) {
  absl::StatusOr<GgufSet> opened = OpenGgufSet(path);
  ATELIER_RETURN_IF_ERROR(opened.status());
  GgufSet& set = *opened;
  MappedContents contents;
  contents.directory = path;
  contents.promised_by = "the metadata";
  ATELIER_ASSIGN_OR_RETURN(contents.config, ParseGgufConfig(set.metadata(), FactsOf(set)));
  ATELIER_RETURN_IF_ERROR(CheckLayers(set));
  contents.digest = DigestOf(set);
  for (GgufFile& file : set.files) {
    contents.shards.push_back(
        {file.name, std::move(file.mapping), file.header.data_begin, std::move(file.fetched)});
    for (const GgufTensor& tensor : file.header.tensors) {
      ATELIER_RETURN_IF_ERROR(AddTensor(tensor, contents.shards.size() - 1, contents));
    }
  }
  return MakeMappedCheckpoint(std::move(contents));
}

}  // namespace atelier
