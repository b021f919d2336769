#pragma once

#include "libs/model/architectures.h"
#include "libs/model/config_fields.h"
#include "libs/model/model_config.h"

namespace atelier {

// Reads config.attention from config.json; what the frontend cannot compute of it is added to
// config.beyond_frontend. config.hidden_size and num_layers must be there. Errors go to `fields`.
void ReadAttention(const Architecture& row, ConfigFields& fields, ModelConfig& config);

}  // namespace atelier
