#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "libs/checkpoint/matrix_bytes.h"
#include "libs/model/dtype.h"
#include "libs/model/model_config.h"
#include "libs/model/quant_source.h"

namespace atelier {

struct GgufType;  // gguf_type.h

// A tensor inside a mapped file. Valid while the Checkpoint lives. `data` may be unaligned.
struct TensorView {
  std::string name;
  DType dtype = DType::kBF16;  // of an element, where `blocks` is null
  std::vector<int64_t> shape;
  absl::Span<const uint8_t> data;
  std::string file;                  // base name, for messages
  const GgufType* blocks = nullptr;  // how elements are coded in blocks along the last dimension

  bool IsFloats() const;  // BF16, F16 or F32 elements
  absl::string_view TypeName() const;
};

// A file of tensors, mapped.
struct CheckpointFile {
  std::string name;  // without folders
  absl::Span<const uint8_t> bytes;
  size_t data_begin = 0;  // behind the header
};

// A published model. Either a Hugging Face folder: config.json, generation_config.json (optional),
// and safetensors in one file (model.safetensors) or sharded (model.safetensors.index.json). Or a
// GGUF file, or the first part of a split set, with the model's properties in its metadata. Tensors
// have Hugging Face names in both, of several spellings one (tensor_names.h). Files are mapped, not
// read: opening touches only headers.
// Files may be there in parts (`atelier fetch`): headers always are, tensors' bytes have to be
// asked for by RequireFetched before they are read. Immutable after Open, so thread-safe. Owned by
// the service's main object.
class Checkpoint {
 public:
  // `path`: the folder, or the file. Checks every header of every file: lengths, offsets, overlaps,
  // duplicate names, dtypes, shapes against bytes, index against shards. Errors name file and
  // tensor: NOT_FOUND (a missing file), INVALID_ARGUMENT or DATA_LOSS (broken content),
  // UNIMPLEMENTED (a dtype or model that this build cannot compute).
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& path);
  virtual ~Checkpoint() = default;

  virtual const ModelConfig& config() const = 0;
  // The path it was opened at.
  virtual const std::string& directory() const = 0;
  // SHA-256 (lower-case hex) of config.json, every header (a GGUF's with its metadata), and the
  // first and last 4 KiB of every file's data: cheap, and different for different weights in
  // practice. Names of files do not enter.
  virtual const std::string& digest() const = 0;

  // NOT_FOUND naming the tensor.
  virtual absl::StatusOr<TensorView> Find(absl::string_view name) const = 0;
  // Find, plus INVALID_ARGUMENT naming file, tensor and both shapes when the shape differs.
  virtual absl::StatusOr<TensorView> RequireShape(absl::string_view name,
                                                  absl::Span<const int64_t> shape) const = 0;
  // RequireShape, plus INVALID_ARGUMENT naming the dtype when it is not one of BF16, F16, F32.
  absl::StatusOr<TensorView> Require(absl::string_view name, absl::Span<const int64_t> shape) const;
  // Require, or blocks that ReadFloats (tensor_floats.h) can read; UNIMPLEMENTED naming the type of
  // others.
  absl::StatusOr<TensorView> RequireReadable(absl::string_view name,
                                             absl::Span<const int64_t> shape) const;
  // Every tensor that is not skipped by the config (multi-token-prediction layers), sorted by name.
  virtual std::vector<std::string> TensorNames() const = 0;

  // The files, in the order in which they were opened.
  virtual std::vector<CheckpointFile> Files() const = 0;
  virtual bool IsWhole() const = 0;  // all files are
  // Whether `bytes`, of a tensor's data, can be read: what was not fetched reads as zeros.
  virtual bool IsFetched(absl::Span<const uint8_t> bytes) const = 0;
  // FAILED_PRECONDITION naming file, tensor and bytes unless IsFetched, with the command that
  // fetches them; `role_flags` are its last ones: "--role=frontend".
  virtual absl::Status RequireFetched(absl::Span<const uint8_t> bytes,
                                      absl::string_view role_flags) const = 0;
};

// Names and shapes of all tensors that `config` promises. VerifyTensors fails on the first that is
// absent or misshapen, before anything is allocated; for frontends, UNIMPLEMENTED where the model
// is beyond them (ModelConfig::CheckFrontend), for workers where it has no experts.
enum class Role { kFrontend, kWorker, kAll };  // all but routed experts; routed experts only; both
absl::Status VerifyTensors(const Checkpoint& checkpoint, Role role);

// A matrix [rows, columns] as published: floats, or codes and scales.
struct PublishedMatrix {
  // The floats, shape [rows, columns], dtype BF16, F16 or F32. Where `quant` is set: the tensor of
  // the codes as it lies in the file, for messages.
  TensorView tensor;
  // Reads the checkpoint's mapped files: valid while the Checkpoint lives.
  std::optional<QuantMatrix> quant;
  // All that is read of the files for it; perhaps not fetched.
  std::vector<MatrixBytes> bytes = {};
};

// The matrix that the checkpoint has under `name` ("….q_proj.weight"): floats or GGUF blocks, or
// what stands in their place where the checkpoint quantises them. Errors as RequireReadable's and
// FindQuantMatrix's (quant_matrix.h).
absl::StatusOr<PublishedMatrix> FindMatrix(const Checkpoint& checkpoint, const std::string& name,
                                           int rows, int columns);

// The bytes of everything that a frontend reads: all but the routed experts. Errors as
// VerifyTensors' of its role.
absl::StatusOr<std::vector<absl::Span<const uint8_t>>> FrontendBytes(const Checkpoint& checkpoint);
// RequireFetched of them.
absl::Status RequireFrontendFetched(const Checkpoint& checkpoint);

// The three matrices of one routed expert: gate and up [I, H], down [H, I].
struct ExpertTensors {
  PublishedMatrix gate;
  PublishedMatrix up;
  PublishedMatrix down;
};
absl::StatusOr<ExpertTensors> FindExpert(const Checkpoint& checkpoint, int layer, int expert);

}  // namespace atelier
