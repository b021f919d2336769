#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "libs/checkpoint/byte_ranges.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/model/expert_set.h"
#include "services/expert-worker/shard_plan.h"

namespace atelier {

// Bytes by file, headers and what enters the digest included.
using FileBytes = std::map<std::string, ByteRanges>;

// What every process reads of a checkpoint's files: headers and the ends of the data.
FileBytes BytesOfDigest(const Checkpoint& checkpoint);
// And the data of these tensors.
FileBytes BytesOfTensors(const Checkpoint& checkpoint, const std::vector<TensorView>& tensors);
// What a frontend reads: all tensors but the routed experts. Errors as VerifyTensors'.
absl::StatusOr<FileBytes> BytesOfFrontend(const Checkpoint& checkpoint);
// What a worker reads to hold `shard`: of gate and up the slice's rows; of down, whose slice is a
// piece of every row, all of it (except where a file keeps its columns together, as GPTQ and AWQ
// do, which for gate and up then means all). Errors as PlanShards' and FindExpert's.
absl::StatusOr<FileBytes> BytesOfWorker(const Checkpoint& checkpoint, const ShardSpec& shard,
                                        const ExpertSet& skipped);

void Add(const FileBytes& more, FileBytes& to);
uint64_t TotalBytes(const FileBytes& bytes);

}  // namespace atelier
