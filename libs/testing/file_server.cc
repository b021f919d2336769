#include "libs/testing/file_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "libs/base/check.h"

namespace atelier::testing {
namespace {

constexpr size_t kPieceBytes = 1024;

bool SendAll(int fd, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t sent = ::send(fd, data, size, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    data += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

bool SendText(int fd, const std::string& text) { return SendAll(fd, text.data(), text.size()); }

// Up to and with the empty line; nullopt when the peer has gone.
std::optional<std::string> ReceiveHead(int fd) {
  std::string head;
  char byte;
  while (!absl::EndsWith(head, "\r\n\r\n")) {
    if (::recv(fd, &byte, 1, 0) != 1) return std::nullopt;
    head += byte;
  }
  return head;
}

FileServer::Request ParseRequest(const std::string& head) {
  FileServer::Request request;
  const std::vector<std::string> lines = absl::StrSplit(head, "\r\n");
  const std::vector<std::string> first = absl::StrSplit(lines[0], ' ');
  if (first.size() == 3) request.path = first[1].substr(0, first[1].find('?'));
  for (const std::string& line : lines) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    request.headers[absl::AsciiStrToLower(line.substr(0, colon))] =
        std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
  }
  absl::string_view range = request.headers["range"];
  const std::vector<absl::string_view> ends = absl::ConsumePrefix(&range, "bytes=")
                                                  ? absl::StrSplit(range, '-')
                                                  : std::vector<absl::string_view>();
  std::pair<uint64_t, uint64_t> parsed;
  if (ends.size() == 2 && absl::SimpleAtoi(ends[0], &parsed.first) &&
      absl::SimpleAtoi(ends[1], &parsed.second)) {
    request.range = parsed;
  }
  return request;
}

// Changes with the file.
std::string EtagOf(const struct stat& info) {
  return absl::StrCat("\"", info.st_ino, "-", info.st_size, "-", info.st_mtim.tv_sec, "-",
                      info.st_mtim.tv_nsec, "\"");
}

std::string HeadText(int status, const std::map<std::string, std::string>& headers) {
  std::string text = absl::StrCat("HTTP/1.1 ", status, " of a test\r\n");
  for (const auto& [name, value] : headers) absl::StrAppend(&text, name, ": ", value, "\r\n");
  return absl::StrCat(text, "\r\n");
}

std::string Sum(uint64_t value, int64_t lie) {
  return absl::StrCat(static_cast<int64_t>(value) + lie);
}

}  // namespace

FileServer::FileServer(std::string folder) : folder_(std::move(folder)) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ATELIER_CHECK(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0);
  ATELIER_CHECK(::listen(listener_, 128) == 0);
  ATELIER_CHECK(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  port_ = ntohs(address.sin_port);
  accepting_ = std::thread([this] { Accept(); });
}

FileServer::~FileServer() {
  std::vector<std::thread> serving;
  {
    const absl::MutexLock lock(&mutex_);
    stopped_ = true;
    for (const int fd : connections_) ::shutdown(fd, SHUT_RDWR);
  }
  ::shutdown(listener_, SHUT_RDWR);
  accepting_.join();
  {
    const absl::MutexLock lock(&mutex_);
    serving = std::move(serving_);
  }
  for (std::thread& thread : serving) thread.join();
  ::close(listener_);
}

std::string FileServer::url() const { return absl::StrCat("http://127.0.0.1:", port_, "/"); }

void FileServer::Behave(Behaviour behaviour) {
  const absl::MutexLock lock(&mutex_);
  behaviour_ = std::move(behaviour);
}

std::vector<FileServer::Request> FileServer::requests() const {
  const absl::MutexLock lock(&mutex_);
  return requests_;
}

uint64_t FileServer::body_bytes() const {
  const absl::MutexLock lock(&mutex_);
  return body_bytes_;
}

void FileServer::Forget() {
  const absl::MutexLock lock(&mutex_);
  requests_.clear();
  body_bytes_ = 0;
}

void FileServer::Accept() {
  while (true) {
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    const absl::MutexLock lock(&mutex_);
    if (fd < 0 || stopped_) {
      if (fd >= 0) ::close(fd);
      return;
    }
    connections_.push_back(fd);
    serving_.emplace_back([this, fd] { Serve(fd); });
  }
}

void FileServer::Serve(int fd) {
  while (true) {
    const std::optional<std::string> head = ReceiveHead(fd);
    if (!head || !AnswerOne(fd, ParseRequest(*head))) break;
  }
  const absl::MutexLock lock(&mutex_);
  connections_.erase(std::find(connections_.begin(), connections_.end(), fd));
  ::close(fd);
}

bool FileServer::AnswerOne(int fd, Request request) {
  Behaviour behaviour;
  {
    const absl::MutexLock lock(&mutex_);
    request.number = static_cast<int>(requests_.size()) + 1;
    requests_.push_back(request);
    behaviour = behaviour_;
  }
  const Answer answer = behaviour ? behaviour(request) : Answer{};
  if (answer.status == 0) return SendFile(fd, request, answer);
  std::map<std::string, std::string> headers = answer.headers;
  headers.insert_or_assign("Content-Length", std::string("0"));
  return SendText(fd, HeadText(answer.status, headers));
}

bool FileServer::SendFile(int fd, const Request& request, const Answer& answer) {
  const std::string path = folder_ + request.path;
  const int file = absl::StrContains(path, "..") ? -1 : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const absl::Cleanup close_file = [file] { ::close(file); };
  struct stat info = {};
  if (file < 0 || ::fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) {
    return SendText(fd, HeadText(404, {{"Content-Length", "0"}}));
  }
  const auto size = static_cast<uint64_t>(info.st_size);
  std::map<std::string, std::string> headers = answer.headers;
  headers["ETag"] = answer.etag.empty() ? EtagOf(info) : answer.etag;
  const auto known = request.headers.find("if-none-match");
  if (known != request.headers.end() && known->second == headers["ETag"]) {
    return SendText(fd, HeadText(304, headers));
  }
  uint64_t begin = 0, length = size;
  const bool part = request.range && answer.ranges;
  if (part) {
    begin = request.range->first;
    if (begin >= size) return SendText(fd, HeadText(416, {{"Content-Length", "0"}}));
    const uint64_t last = std::min(request.range->second, size - 1);
    length = last - begin + 1;
    headers["Content-Range"] =
        absl::StrCat("bytes ", Sum(begin, answer.begin_lie), "-", Sum(last, answer.begin_lie), "/",
                     Sum(size, answer.total_lie));
  }
  if (!answer.no_length) headers["Content-Length"] = Sum(length, answer.length_lie);
  return SendText(fd, HeadText(part ? 206 : 200, headers)) &&
         SendBody(fd, file, begin, length, answer) && !answer.no_length && answer.length_lie == 0;
}

bool FileServer::SendBody(int fd, int file, uint64_t begin, uint64_t size, const Answer& answer) {
  const uint64_t end = begin + std::min(size, answer.drop_after.value_or(size));
  char piece[kPieceBytes];
  for (uint64_t at = begin; at < end;) {
    if (answer.pause > absl::ZeroDuration()) absl::SleepFor(answer.pause);
    const ssize_t count =
        ::pread(file, piece, std::min<uint64_t>(sizeof(piece), end - at), static_cast<off_t>(at));
    if (count <= 0 || !SendAll(fd, piece, static_cast<size_t>(count))) return false;
    at += static_cast<uint64_t>(count);
    const absl::MutexLock lock(&mutex_);
    body_bytes_ += static_cast<uint64_t>(count);
    if (stopped_) return false;
  }
  return !answer.drop_after || *answer.drop_after >= size;
}

}  // namespace atelier::testing
