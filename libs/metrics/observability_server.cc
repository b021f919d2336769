#include "libs/metrics/observability_server.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sstream>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "civetweb.h"
#include "prometheus/text_serializer.h"

namespace atelier {
namespace {

struct Answer {
  int code = 200;
  std::string body;
  const char* content_type = "text/plain; charset=utf-8";
};

const char* ReasonPhrase(int code) {
  switch (code) {
    case 200:
      return "OK";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    default:
      return "Service Unavailable";
  }
}

// Collects what civetweb says while it starts: its return value is only null. Later lines are about
// single connections of clients and of no use to the operator.
class StartLog {
 public:
  void Add(absl::string_view message) {
    absl::MutexLock lock(&mutex_);
    if (closed_) return;
    absl::StrAppend(&text_, text_.empty() ? "" : "; ", message);
  }
  std::string Close() {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    return text_;
  }

 private:
  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::string text_ ABSL_GUARDED_BY(mutex_);
};

// Opens a connection and closes it. Nobody may be there any more, which is just as well.
void KnockAt(const Endpoint& endpoint) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = absl::StrCat(endpoint.port);
  if (::getaddrinfo(endpoint.host.c_str(), port.c_str(), &hints, &found) != 0) return;
  const int fd = ::socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, 0);
  [[maybe_unused]] const int result = ::connect(fd, found->ai_addr, found->ai_addrlen);
  ::close(fd);
  ::freeaddrinfo(found);
}

class CivetObservabilityServer final : public ObservabilityServer {
 public:
  explicit CivetObservabilityServer(const ObservabilityOptions& options)
      : options_(options), endpoint_(options.listen) {}
  ~CivetObservabilityServer() override {
    if (context_ != nullptr) Stop();
  }

  const Endpoint& endpoint() const override { return endpoint_; }

  absl::Status Listen();

 private:
  static int OnLog(const mg_connection* connection, const char* message) {
    const auto* const request = mg_get_context(connection);
    static_cast<StartLog*>(mg_get_user_data(request))->Add(message);
    return 1;  // keeps it from stderr
  }
  static int OnRequest(mg_connection* connection, void* self) {
    return static_cast<CivetObservabilityServer*>(self)->Respond(connection);
  }

  void Stop();
  int Respond(mg_connection* connection) const;
  Answer AnswerTo(absl::string_view method, absl::string_view path) const;
  Answer Metrics() const;
  Answer Readiness() const;

  const ObservabilityOptions options_;
  Endpoint endpoint_;
  StartLog start_log_;
  mg_context* context_ = nullptr;
};

absl::Status CivetObservabilityServer::Listen() {
  const std::string address = endpoint_.ToString();
  // Connections are not kept: a few idle scrapers would otherwise hold every thread and starve the
  // kubelet's probes.
  const char* settings[] = {
      "listening_ports",    address.c_str(), "num_threads", "16", "enable_keep_alive", "no",
      "request_timeout_ms", "2000",          nullptr};
  mg_callbacks callbacks{};
  callbacks.log_message = OnLog;
  context_ = mg_start(&callbacks, &start_log_, settings);
  const std::string problem = start_log_.Close();
  mg_server_port bound{};
  if (context_ == nullptr || mg_get_server_ports(context_, 1, &bound) != 1) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", problem));
  }
  endpoint_.port = bound.port;
  mg_set_request_handler(context_, "**", OnRequest, this);
  return absl::OkStatus();
}

// civetweb looks whether it is to stop only when a connection comes or two seconds have passed: a
// restart should not wait for that.
void CivetObservabilityServer::Stop() {
  absl::Notification stopped;
  std::thread stopper([&] {
    mg_stop(context_);
    stopped.Notify();
  });
  while (!stopped.WaitForNotificationWithTimeout(absl::Milliseconds(10))) KnockAt(endpoint_);
  stopper.join();
}

int CivetObservabilityServer::Respond(mg_connection* connection) const {
  const mg_request_info* const request = mg_get_request_info(connection);
  const absl::string_view method = request->request_method;
  const Answer answer = AnswerTo(method, request->local_uri);
  mg_printf(connection,
            "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n%sConnection: "
            "close\r\n\r\n",
            answer.code, ReasonPhrase(answer.code), answer.content_type, answer.body.size(),
            answer.code == 405 ? "Allow: GET, HEAD\r\n" : "");
  if (method != "HEAD") mg_write(connection, answer.body.data(), answer.body.size());
  return answer.code;
}

Answer CivetObservabilityServer::AnswerTo(absl::string_view method, absl::string_view path) const {
  if (method != "GET" && method != "HEAD") return {405, "only GET and HEAD\n"};
  if (path == "/metrics") return Metrics();
  if (path == "/healthz" || path == "/health") return {200, "ok\n"};
  if (path == "/readyz") return Readiness();
  return {404, "not found; there are /metrics, /healthz, /health and /readyz\n"};
}

Answer CivetObservabilityServer::Metrics() const {
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, options_.metrics->Collect());
  return {200, text.str(), "text/plain; version=0.0.4; charset=utf-8"};
}

Answer CivetObservabilityServer::Readiness() const {
  const absl::Status ready = options_.ready();
  if (ready.ok()) return {200, "ready\n"};
  return {503, absl::StrCat("not ready: ", ready.message(), "\n")};
}

}  // namespace

absl::StatusOr<std::unique_ptr<ObservabilityServer>> ObservabilityServer::Start(
    const ObservabilityOptions& options) {
  if (options.listen.is_unix()) {
    return absl::InvalidArgumentError(
        absl::StrCat("metrics address \"", options.listen.ToString(),
                     "\": Prometheus and probes need host:port, not a Unix socket"));
  }
  if (absl::StrContains(options.listen.host, ':') && mg_check_feature(MG_FEATURES_IPV6) == 0) {
    return absl::UnimplementedError(
        absl::StrCat("metrics address \"", options.listen.ToString(),
                     "\": this system's civetweb has no IPv6; use an IPv4 address"));
  }
  auto server = std::make_unique<CivetObservabilityServer>(options);
  const absl::Status listening = server->Listen();
  if (!listening.ok()) return listening;
  return server;
}

}  // namespace atelier
