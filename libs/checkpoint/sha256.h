#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/types/span.h"

namespace atelier {

// An incremental SHA-256. Not thread-safe.
class Sha256 {
 public:
  Sha256();
  ~Sha256();

  void Add(absl::Span<const uint8_t> bytes);
  // Lower-case hex. Ends the computation: no other call may follow.
  std::string Finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace atelier
