#include "tests/e2e/faults/sequence.h"

#include <random>

namespace atelier::faults {
namespace {

constexpr uint64_t kLongestPrompt = 48;
constexpr uint64_t kFewestTokens = 8;
constexpr uint64_t kMostTokens = 64;
// Below lie a tokenizer's special tokens.
constexpr uint64_t kFirstToken = 8;

}  // namespace

std::vector<StreamRequest> MakeRequests(uint64_t seed, int count, uint32_t vocab_size) {
  std::mt19937_64 random(seed);
  std::vector<StreamRequest> requests(static_cast<size_t>(count));
  for (size_t i = 0; i < requests.size(); ++i) {
    StreamRequest& request = requests[i];
    request.prompt.resize(1 + random() % kLongestPrompt);
    for (uint32_t& token : request.prompt) {
      token = static_cast<uint32_t>(kFirstToken + random() % (vocab_size - kFirstToken));
    }
    request.max_new_tokens =
        static_cast<uint32_t>(kFewestTokens + random() % (kMostTokens - kFewestTokens + 1));
    request.temperature = i % 2 == 0 ? 0.0f : 1.0f;
    request.seed = static_cast<uint32_t>(random());
  }
  return requests;
}

}  // namespace atelier::faults
