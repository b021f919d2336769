#pragma once

#include <string>

#include "libs/testing/synthetic_checkpoint.h"
#include "tests/golden/golden_file.h"

namespace atelier::golden {

// The bytes of a tensor of a tiny model: the same as tools/gen_golden/weights.py makes, which says
// how. Element i depends on the tensor's name and i alone.
testing::RawTensor Generate(const RandomTensor& tensor);

// Writes the checkpoint of a tiny model into `directory`, which exists. Returns the SHA-256
// (lower-case hex) of all tensors' bytes in the order of their names, to be compared with
// golden.weights_sha256.
std::string WriteTinyCheckpoint(const TinyGolden& golden, const std::string& directory);

}  // namespace atelier::golden
