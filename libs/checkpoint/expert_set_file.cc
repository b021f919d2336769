#include "libs/checkpoint/expert_set_file.h"

#include "libs/base/status_macros.h"
#include "libs/checkpoint/mapped_file.h"

namespace atelier {
namespace {

constexpr size_t kMaxBytes = size_t{4} << 20;

}  // namespace

absl::StatusOr<ExpertSet> ReadExpertSet(const std::string& path, const ModelConfig& config) {
  ATELIER_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::OpenSmall(path, kMaxBytes));
  return ExpertSet::Parse(file.text(), config);
}

}  // namespace atelier
