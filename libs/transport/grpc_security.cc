#include "libs/transport/grpc_security.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/security/auth_metadata_processor.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "libs/transport/status_codes.h"
#include "libs/transport/token_file.h"

namespace atelier {
namespace {

using grpc::experimental::FileWatcherCertificateProvider;

// How soon a changed file counts. A connection keeps what it began with.
constexpr unsigned kRefreshSeconds = 1;
constexpr char kHeader[] = "authorization";
constexpr absl::string_view kScheme = "Bearer ";

// Reads the file for each call that opens (a client's stream opens once), so changes count at once.
class TokenCheck final : public grpc::AuthMetadataProcessor {
 public:
  explicit TokenCheck(std::string path) : path_(std::move(path)) {}

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext*, OutputMetadata* consumed,
                       OutputMetadata*) override {
    const auto header = metadata.find(kHeader);
    if (header == metadata.end()) return Refused("the call brings no bearer token");
    const absl::string_view value(header->second.data(), header->second.size());
    consumed->emplace(kHeader, std::string(value));
    const absl::StatusOr<std::vector<std::string>> tokens = ReadTokens(path_);
    // What is wrong with the file is not for strangers to know.
    if (!tokens.ok()) return Refused("the worker's tokens cannot be read");
    const bool known = std::any_of(tokens->begin(), tokens->end(), [&](const std::string& token) {
      return IsSameToken(value, absl::StrCat(kScheme, token));
    });
    return known ? grpc::Status::OK : Refused("the call's bearer token is not one of the worker's");
  }

 private:
  static grpc::Status Refused(const char* why) {
    return grpc::Status(grpc::StatusCode::UNAUTHENTICATED, why);
  }

  const std::string path_;
};

class TokenOfFile final : public grpc::MetadataCredentialsPlugin {
 public:
  explicit TokenOfFile(std::string path) : path_(std::move(path)) {}

  grpc::Status GetMetadata(grpc::string_ref, grpc::string_ref, const grpc::AuthContext&,
                           std::multimap<grpc::string, grpc::string>* metadata) override {
    const absl::StatusOr<std::vector<std::string>> tokens = ReadTokens(path_);
    if (!tokens.ok()) {
      return grpc::Status(grpc::StatusCode::UNAUTHENTICATED,
                          std::string(tokens.status().message()));
    }
    metadata->emplace(kHeader, absl::StrCat(kScheme, tokens->front()));
    return grpc::Status::OK;
  }
  grpc::string DebugString() override { return absl::StrCat("bearer token of ", path_); }

 private:
  const std::string path_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const ServerSecurity& security) {
  if (!security.has_tls()) return grpc::InsecureServerCredentials();
  grpc::experimental::TlsServerCredentialsOptions options(
      std::make_shared<FileWatcherCertificateProvider>(security.private_key, security.certificate,
                                                       security.client_ca, kRefreshSeconds));
  options.watch_identity_key_cert_pairs();
  if (!security.client_ca.empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  std::shared_ptr<grpc::ServerCredentials> credentials =
      grpc::experimental::TlsServerCredentials(options);
  if (!security.token_file.empty()) {
    credentials->SetAuthMetadataProcessor(std::make_shared<TokenCheck>(security.token_file));
  }
  return credentials;
}

std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(const ClientSecurity& security) {
  if (!security.has_tls()) return grpc::InsecureChannelCredentials();
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(std::make_shared<FileWatcherCertificateProvider>(
      security.private_key, security.certificate, security.ca, kRefreshSeconds));
  options.watch_root_certs();
  if (!security.certificate.empty()) options.watch_identity_key_cert_pairs();
  std::shared_ptr<grpc::ChannelCredentials> credentials =
      grpc::experimental::TlsCredentials(options);
  if (security.token_file.empty()) return credentials;
  return grpc::CompositeChannelCredentials(
      credentials,
      grpc::MetadataCredentialsFromPlugin(std::make_unique<TokenOfFile>(security.token_file)));
}

}  // namespace atelier
