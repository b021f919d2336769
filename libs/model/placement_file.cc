#include "libs/model/placement_file.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "libs/base/quoted.h"
#include "libs/base/status_macros.h"
#include "libs/model/config_fields.h"
#include "libs/model/config_limits.h"

namespace atelier {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;

absl::Status Broken(absl::string_view where, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", problem));
}

absl::StatusOr<ShardSpec> ParseShard(const json& object, const std::string& where,
                                     int num_experts) {
  if (!object.is_object()) return Broken(where, "must be an object");
  ConfigFields fields(object, where);
  const std::string layers = fields.String({"layers"}, "");
  const std::string experts = fields.String({"experts"}, "");
  const std::string slice = fields.String({"slice"}, "0/1");
  ATELIER_RETURN_IF_ERROR(fields.status());
  ShardSpec shard;
  absl::StatusOr<std::vector<int>> indexes = ParseIndexRanges(layers, kMaxLayers);
  if (!indexes.ok()) return Broken(where, absl::StrCat("layers: ", indexes.status().message()));
  shard.layers = *std::move(indexes);
  const absl::StatusOr<ExpertRange> range = ParseExpertRange(experts);
  if (!range.ok()) return Broken(where, range.status().message());
  if (range->end > num_experts) {
    return Broken(where, absl::StrCat("experts ", experts, ": there are 0-", num_experts - 1));
  }
  const absl::StatusOr<SliceSpec> part = ParseSlice(slice);
  if (!part.ok()) return Broken(where, part.status().message());
  shard.expert_begin = range->begin;
  shard.expert_end = range->end;
  shard.slice_index = part->index;
  shard.slice_count = part->count;
  return shard;
}

absl::StatusOr<PlacedWorker> ParseWorker(const json& object, const std::string& where,
                                         int num_experts) {
  if (!object.is_object()) return Broken(where, "must be an object");
  ConfigFields fields(object, where);
  PlacedWorker worker;
  worker.name = fields.String({"name"}, "");
  worker.host = fields.String({"host"}, "");
  worker.numa_node = fields.Int({"numa_node"}, {0, 1023}, 0);
  worker.memory_bytes = fields.Int64({"memory_bytes"}, {0, INT64_MAX}, 0);
  ATELIER_RETURN_IF_ERROR(fields.status());
  if (worker.name.empty()) return Broken(where, "name is missing");
  const auto shards = object.find("shards");
  if (shards == object.end()) return worker;
  if (!shards->is_array()) return Broken(where, "shards must be a list");
  for (size_t i = 0; i < shards->size(); ++i) {
    ATELIER_ASSIGN_OR_RETURN(
        ShardSpec shard,
        ParseShard((*shards)[i], absl::StrCat(where, ".shards[", i, "]"), num_experts));
    worker.shards.push_back(std::move(shard));
  }
  return worker;
}

absl::StatusOr<std::vector<PlacedWorker>> ParseWorkers(const json& document, absl::string_view file,
                                                       int num_experts) {
  const auto list = document.find("workers");
  if (list == document.end() || !list->is_array() || list->empty()) {
    return Broken(file, "workers must be a list of at least one");
  }
  std::vector<PlacedWorker> workers;
  std::set<std::string> names;
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string where = absl::StrCat(file, ": workers[", i, "]");
    ATELIER_ASSIGN_OR_RETURN(PlacedWorker worker, ParseWorker((*list)[i], where, num_experts));
    if (!names.insert(worker.name).second) {
      return Broken(where, absl::StrCat("two workers are named ", Quoted(worker.name)));
    }
    workers.push_back(std::move(worker));
  }
  return workers;
}

json ShardJson(const ShardSpec& shard) {
  return {{"layers", IndexRanges(shard.layers)},
          {"experts", absl::StrCat(shard.expert_begin, "-", shard.expert_end - 1)},
          {"slice", absl::StrCat(shard.slice_index, "/", shard.slice_count)}};
}

}  // namespace

absl::StatusOr<PlacementFile> PlacementFile::Parse(absl::string_view text, absl::string_view file) {
  ATELIER_ASSIGN_OR_RETURN(const json document, ParseJsonObject(text, file));
  ConfigFields fields(document, file);
  PlacementFile placement;
  fields.RequireInt({"atelier_placement"}, {kVersion, kVersion});
  placement.model_digest = fields.String({"model_digest"}, "");
  placement.num_experts = fields.RequireInt({"num_experts"}, {1, kMaxExperts});
  ATELIER_RETURN_IF_ERROR(fields.status());
  ATELIER_ASSIGN_OR_RETURN(placement.workers, ParseWorkers(document, file, placement.num_experts));
  return placement;
}

absl::StatusOr<std::vector<PlacedWorker>> ParseWorkerList(absl::string_view text,
                                                          absl::string_view file) {
  ATELIER_ASSIGN_OR_RETURN(const json document, ParseJsonObject(text, file));
  return ParseWorkers(document, file, kMaxExperts);
}

std::string PlacementFile::ToJson() const {
  json document = {{"atelier_placement", kVersion},
                   {"model_digest", model_digest},
                   {"num_experts", num_experts},
                   {"workers", json::array()}};
  for (const PlacedWorker& worker : workers) {
    json shards = json::array();
    for (const ShardSpec& shard : worker.shards) shards.push_back(ShardJson(shard));
    document["workers"].push_back({{"name", worker.name},
                                   {"host", worker.host},
                                   {"numa_node", worker.numa_node},
                                   {"memory_bytes", worker.memory_bytes},
                                   {"shards", std::move(shards)}});
  }
  return document.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

absl::StatusOr<const PlacedWorker*> PlacementFile::Find(absl::string_view name) const {
  for (const PlacedWorker& worker : workers) {
    if (worker.name == name) return &worker;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no worker ", Quoted(name), "; there are ",
                   absl::StrJoin(workers, ", ", [](std::string* out, const PlacedWorker& worker) {
                     absl::StrAppend(out, worker.name);
                   })));
}

}  // namespace atelier
