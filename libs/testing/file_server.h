#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace atelier::testing {

// An HTTP/1.1 server of a folder on 127.0.0.1, which knows ranges and etags, and misbehaves as a
// test asks it to. Thread-safe; answers until it is destroyed.
class FileServer {
 public:
  struct Request {
    std::string path;
    std::map<std::string, std::string> headers;          // names in lower case
    std::optional<std::pair<uint64_t, uint64_t>> range;  // both ends included
    int number = 0;                                      // of the requests so far, from 1
  };
  // How a request is answered; by default as a good server does.
  struct Answer {
    int status = 0;         // instead of the one that fits, with an empty body
    bool ranges = true;     // false: always the whole file
    std::string etag = {};  // instead of the file's
    std::map<std::string, std::string> headers = {};    // more of them
    std::optional<uint64_t> drop_after = std::nullopt;  // body bytes: then the connection breaks
    int64_t length_lie = 0;                             // added to Content-Length
    int64_t begin_lie = 0;                              // added to both ends in Content-Range
    int64_t total_lie = 0;                              // added to the total in Content-Range
    bool no_length = false;                             // neither Content-Length nor chunks
    absl::Duration pause = absl::ZeroDuration();        // before each KiB
  };
  using Behaviour = std::function<Answer(const Request&)>;

  explicit FileServer(std::string folder);
  ~FileServer();
  FileServer(const FileServer&) = delete;
  FileServer& operator=(const FileServer&) = delete;

  void Behave(Behaviour behaviour);
  int port() const { return port_; }
  std::string url() const;  // of the folder, with / at its end
  std::vector<Request> requests() const;
  uint64_t body_bytes() const;  // sent so far
  // Of requests and bytes; behaviour stays.
  void Forget();

 private:
  void Accept();
  void Serve(int fd);
  // False when the connection is to be closed.
  bool AnswerOne(int fd, Request request);
  bool SendFile(int fd, const Request& request, const Answer& answer);
  bool SendBody(int fd, int file, uint64_t begin, uint64_t size, const Answer& answer);

  const std::string folder_;
  int listener_ = -1;
  int port_ = 0;
  std::thread accepting_;
  mutable absl::Mutex mutex_;
  Behaviour behaviour_ ABSL_GUARDED_BY(mutex_);
  std::vector<Request> requests_ ABSL_GUARDED_BY(mutex_);
  uint64_t body_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<int> connections_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> serving_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace atelier::testing
