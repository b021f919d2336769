#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "libs/checkpoint/byte_ranges.h"
#include "tools/atelier/fetch/remote_file.h"

namespace atelier {

// Takes the bytes of a file, in order.
class ByteSink {
 public:
  virtual ~ByteSink() = default;
  virtual absl::Status Write(uint64_t offset, absl::Span<const uint8_t> bytes) = 0;
};

// What one exchange brings: of an answer that makes sense the bytes, of others nothing but a
// status. Borrows all that it is given.
class ReaderBody : public AnswerBody {
 public:
  ReaderBody(const Credentials& credentials, const std::function<bool()>& stopped)
      : credentials_(credentials), stopped_(stopped) {}

  absl::Status Begin(const Answer& answer) final;
  absl::Status Write(absl::Span<const uint8_t> bytes) final;
  bool progressed() const { return progressed_; }

 private:
  virtual absl::Status Take(const Answer& answer) = 0;  // 200 or 206
  virtual absl::Status Add(absl::Span<const uint8_t> bytes) = 0;

  const Credentials& credentials_;
  const std::function<bool()>& stopped_;
  bool progressed_ = false;
};

// The answer to a request for `left`, from which it takes away what comes. UNIMPLEMENTED for a
// server that sends the whole file instead.
class RangeBody final : public ReaderBody {
 public:
  RangeBody(const Credentials& credentials, const std::function<bool()>& stopped, RemoteFile& file,
            ByteRange& left, ByteSink& sink)
      : ReaderBody(credentials, stopped), file_(file), left_(left), sink_(sink) {}

 private:
  absl::Status Take(const Answer& answer) override;
  absl::Status Add(absl::Span<const uint8_t> bytes) override;

  RemoteFile& file_;
  ByteRange& left_;
  ByteSink& sink_;
};

class WholeBody final : public ReaderBody {
 public:
  WholeBody(const Credentials& credentials, const std::function<bool()>& stopped, RemoteFile& file,
            ByteSink& sink)
      : ReaderBody(credentials, stopped), file_(file), sink_(sink) {}

 private:
  absl::Status Take(const Answer& answer) override;
  absl::Status Add(absl::Span<const uint8_t> bytes) override;

  RemoteFile& file_;
  ByteSink& sink_;
  uint64_t next_ = 0;
};

// Keeps a whole file of at most max_bytes in memory.
class SmallBody final : public ReaderBody {
 public:
  SmallBody(const Credentials& credentials, const std::function<bool()>& stopped,
            uint64_t max_bytes)
      : ReaderBody(credentials, stopped), max_bytes_(max_bytes) {}

  std::string TakeContent() { return std::move(content_); }

 private:
  absl::Status Take(const Answer& answer) override;
  absl::Status Add(absl::Span<const uint8_t> bytes) override;

  const uint64_t max_bytes_;
  std::string content_;
};

}  // namespace atelier
