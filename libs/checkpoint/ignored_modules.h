#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "libs/model/dtype.h"
#include "libs/model/quantization.h"
#include "re2/re2.h"

namespace atelier {

// The modules that quantization_config excepts from quantisation, under their published names. The
// tensors themselves say what is quantised; the list must not contradict them. An entry names, as
// the formats' own loaders read it at least,
//   compressed-tensors: the module of that name, or with "re:" those whose name an expression
//     matches from its start;
//   others: the module, all within it, and all that end with it ("mlp.gate" is no "mlp.gate_proj");
//     a "*" is any part of a name.
// Expressions that RE2 does not know (look-around) name nothing.
class IgnoredModules {
 public:
  // INVALID_ARGUMENT where there are more expressions, or longer ones, than models have.
  static absl::StatusOr<IgnoredModules> Create(const QuantizationConfig& config);

  // INVALID_ARGUMENT naming both if the tensor holds codes of a module that is in the list.
  absl::Status Check(absl::string_view tensor, DType dtype, absl::string_view file) const;

 private:
  bool Contains(absl::string_view module) const;

  std::string key_;
  bool whole_names_ = false;  // entries name no more than one module
  absl::flat_hash_set<std::string> names_;
  std::vector<std::unique_ptr<RE2>> expressions_;
};

}  // namespace atelier
