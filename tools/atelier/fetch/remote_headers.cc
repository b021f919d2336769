#include "tools/atelier/fetch/remote_headers.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/tensor_list.h"

namespace atelier {
namespace {

constexpr char kMemoryFolder[] = "/dev/shm";
constexpr size_t kMaxTellingBytes = size_t{1} << 20;
// Of a quantised matrix: the order of its inputs, its zero points, its shape once more.
constexpr std::array<absl::string_view, 3> kTelling = {".g_idx", ".qzeros", ".weight_shape"};

// Of the first expert: all are published alike.
std::vector<TensorView> TellingTensors(const Checkpoint& checkpoint) {
  std::vector<TensorView> telling;
  const ModelConfig& config = checkpoint.config();
  int layer = 0;
  while (layer < config.num_layers && !config.is_moe_layer[static_cast<size_t>(layer)]) ++layer;
  const std::string expert = absl::StrCat(LayerPrefix(layer), "mlp.experts.0.");
  for (const std::string& name : checkpoint.TensorNames()) {
    const auto tells = [&name](absl::string_view end) { return absl::EndsWith(name, end); };
    if (!absl::StartsWith(name, expert) || std::none_of(kTelling.begin(), kTelling.end(), tells)) {
      continue;
    }
    const absl::StatusOr<TensorView> tensor = checkpoint.Find(name);
    if (tensor.ok() && tensor->data.size() <= kMaxTellingBytes) telling.push_back(*tensor);
  }
  return telling;
}

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenIn(FetcherOptions options, std::string directory) {
  options.directory = std::move(directory);
  options.headers_only = true;
  options.tokenizer = false;
  CheckpointFetcher fetcher(std::move(options));
  ATELIER_RETURN_IF_ERROR(fetcher.FetchHeaders());
  ATELIER_ASSIGN_OR_RETURN(auto checkpoint, Checkpoint::Open(fetcher.checkpoint_path()));
  const std::vector<TensorView> telling = TellingTensors(*checkpoint);
  if (telling.empty()) return checkpoint;
  ATELIER_RETURN_IF_ERROR(fetcher.FetchBytes(BytesOfTensors(*checkpoint, telling)));
  return Checkpoint::Open(fetcher.checkpoint_path());
}

}  // namespace

std::vector<std::string> ScratchParents() {
  std::error_code none;
  return {kMemoryFolder, std::filesystem::temp_directory_path(none).string()};
}

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenRemoteHeaders(
    FetcherOptions options, const std::vector<std::string>& parents, ScratchFolder& scratch) {
  const std::string source(absl::StripSuffix(options.source.spelled, "/"));
  absl::Status refused;
  for (const std::string& parent : parents) {
    const absl::StatusOr<std::string> folder = scratch.Make(parent);
    if (absl::IsCancelled(folder.status())) return folder.status();
    refused = folder.status();
    if (!folder.ok()) continue;
    absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint = OpenIn(options, *folder);
    scratch.Remove();
    if (checkpoint.ok()) return checkpoint;
    refused = absl::Status(checkpoint.status().code(),
                           absl::StrReplaceAll(checkpoint.status().message(), {{*folder, source}}));
    if (!absl::IsResourceExhausted(refused)) break;
  }
  return refused;
}

}  // namespace atelier
