#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "libs/model/model_config.h"

namespace atelier {

// Routed experts by layer of the model, such as those that a frontend computes on its device and
// that workers need not hold. A plain value; none by default.
class ExpertSet {
 public:
  // The text of a placement file: a line "LAYER: EXPERTS" for each layer that has any, EXPERTS
  // being comma-separated ids and ranges with both ends, e.g. "3: 0-7,12". '#' begins a comment.
  // INVALID_ARGUMENT naming the line for anything else, a layer that comes twice, and layers or
  // experts that the model does not have.
  static absl::StatusOr<ExpertSet> Parse(absl::string_view text, const ModelConfig& config);

  bool empty() const { return by_layer_.empty(); }
  bool Contains(int layer, int expert) const;
  // How many of the experts [begin, end) of a layer.
  int Count(int layer, int begin, int end) const;

 private:
  std::vector<std::vector<bool>> by_layer_;  // [layer][expert]; an empty layer has none
};

}  // namespace atelier
