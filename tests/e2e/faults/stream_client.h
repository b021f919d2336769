#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tests/e2e/faults/sequence.h"

namespace atelier::faults {

// What a client does with a stream after a token.
enum class StreamStep { kReadOn, kHangUp, kAbort };

// A client of one frontend's real API. Thread-safe.
class StreamClient {
 public:
  virtual ~StreamClient() = default;

  static std::unique_ptr<StreamClient> Create(const std::string& address);

  // Blocks until the stream has ended. `on_token` is asked after each token; after a hang-up or an
  // abort no more. A stream that is silent for a minute ends with DEADLINE_EXCEEDED.
  virtual Sequence Generate(const StreamRequest& request, const std::string& id,
                            const std::function<StreamStep()>& on_token) = 0;
};

}  // namespace atelier::faults
