#pragma once

#include <cstdint>
#include <string>

#include "libs/model/model_config.h"

namespace atelier {

// What callers are told of the model and the server. A plain value that the frontend fills.
struct ServedModel {
  std::string model_path;         // absolute
  std::string tokenizer_path;     // where the gateway may look for a tokenizer on its own host
  std::string served_model_name;  // the OpenAI API's model id
  std::string weight_version;     // the checkpoint's digest
  std::string server_version;
  std::string device;
  // As a JSON object; the gateway applies it to fields a client left unset. Empty = none.
  std::string default_sampling_params_json;
  ModelConfig config;
  int max_context = 0;       // tokens, prompt and output together
  int64_t weight_bytes = 0;  // resident on the frontend's device; 0 = unknown
};

}  // namespace atelier
