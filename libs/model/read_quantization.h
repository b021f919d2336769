#pragma once

#include "libs/model/config_fields.h"
#include "libs/model/quantization.h"

namespace atelier {

// The object quantization_config of config.json, if there is one. What this build cannot read
// fails in `fields` with UNIMPLEMENTED naming key and value.
QuantizationConfig ReadQuantization(ConfigFields& fields);

}  // namespace atelier
