#include "libs/transport/grpc_security.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "grpc/grpc.h"
#include "grpc/grpc_security.h"
#include "grpc/slice.h"
#include "libs/base/check.h"
#include "libs/transport/token_file.h"

namespace atelier {
namespace {

constexpr char kHeader[] = "authorization";
constexpr absl::string_view kScheme = "Bearer ";

absl::string_view TextOf(const grpc_slice& slice) {
  return absl::string_view(reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)),
                           GRPC_SLICE_LENGTH(slice));
}

// Asked of each call that opens; a client's stream opens once.
class TokenCheck {
 public:
  TokenCheck(std::string path, const Logger& logger) : file_(std::move(path), logger) {}

  static grpc_auth_metadata_processor Processor(std::unique_ptr<TokenCheck> check) {
    return {Process, [](void* state) { delete static_cast<TokenCheck*>(state); }, check.release()};
  }

 private:
  static void Process(void* state, grpc_auth_context*, const grpc_metadata* metadata, size_t count,
                      grpc_process_auth_metadata_done_cb done, void* user_data) {
    const grpc_metadata* header =
        std::find_if(metadata, metadata + count,
                     [](const grpc_metadata& m) { return TextOf(m.key) == kHeader; });
    const bool absent = header == metadata + count;
    if (!absent && static_cast<TokenCheck*>(state)->Knows(TextOf(header->value))) {
      return done(user_data, header, 1, nullptr, 0, GRPC_STATUS_OK, nullptr);
    }
    done(user_data, nullptr, 0, nullptr, 0, GRPC_STATUS_UNAUTHENTICATED,
         absent ? "the call brings no bearer token"
                : "the call's bearer token is not one of the worker's");
  }
  bool Knows(absl::string_view value) {
    const std::vector<std::string> tokens = file_.Read();
    return std::any_of(tokens.begin(), tokens.end(), [&](const std::string& token) {
      return IsSameToken(value, absl::StrCat(kScheme, token));
    });
  }

  TokenFile file_;
};

// TLS of one port by gRPC's C API, which alone asks for certificates at every handshake.
class RotatingServerCredentials final : public grpc::ServerCredentials {
 public:
  RotatingServerCredentials(const ServerSecurity& security, const Logger& logger)
      : files_(PathsOf(security), logger) {
    grpc_ssl_server_credentials_options* const options =
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            security.client_ca.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                       : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY,
            Fetch, this);
    credentials_ = grpc_ssl_server_credentials_create_with_options(options);
    ATELIER_CHECK(credentials_ != nullptr);
    if (security.token_file.empty()) return;
    grpc_server_credentials_set_auth_metadata_processor(
        credentials_,
        TokenCheck::Processor(std::make_unique<TokenCheck>(security.token_file, logger)));
  }
  ~RotatingServerCredentials() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {
    ATELIER_CHECK(false);  // tokens are all that calls are asked for
  }

 private:
  static grpc_ssl_certificate_config_reload_status Fetch(
      void* self, grpc_ssl_server_certificate_config** config) {
    const TlsFiles::Texts texts = static_cast<RotatingServerCredentials*>(self)->files_.Read();
    if (texts.parts.certificate.empty()) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL;
    if (!texts.changed) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair{texts.parts.private_key.c_str(),
                                          texts.parts.certificate.c_str()};
    // gRPC wants some CA even where it asks clients for nothing.
    const std::string& ca = texts.parts.ca.empty() ? texts.parts.certificate : texts.parts.ca;
    *config = grpc_ssl_server_certificate_config_create(ca.c_str(), &pair, 1);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  TlsFiles files_;
  grpc_server_credentials* credentials_ = nullptr;
};

class TokenOfFile final : public grpc::MetadataCredentialsPlugin {
 public:
  explicit TokenOfFile(std::shared_ptr<TokenFile> file) : file_(std::move(file)) {}

  grpc::Status GetMetadata(grpc::string_ref, grpc::string_ref, const grpc::AuthContext&,
                           std::multimap<grpc::string, grpc::string>* metadata) override {
    const std::vector<std::string> tokens = file_->Read();
    if (tokens.empty()) {
      return grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "there is no token to bring");
    }
    metadata->emplace(kHeader, absl::StrCat(kScheme, tokens.front()));
    return grpc::Status::OK;
  }
  grpc::string DebugString() override { return "bearer token of a file"; }

 private:
  const std::shared_ptr<TokenFile> file_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const ServerSecurity& security,
                                                             const Logger& logger) {
  if (!security.has_tls()) return grpc::InsecureServerCredentials();
  return std::make_shared<RotatingServerCredentials>(security, logger);
}

ChannelSecurity::ChannelSecurity(const ClientSecurity& security, const Logger& logger)
    : security_(security),
      files_(PathsOf(security), logger),
      tokens_(security.token_file.empty()
                  ? nullptr
                  : std::make_shared<TokenFile>(security.token_file, logger)) {}

std::shared_ptr<grpc::ChannelCredentials> ChannelSecurity::Credentials() {
  if (!security_.has_tls()) return grpc::InsecureChannelCredentials();
  TlsParts parts = files_.Read().parts;
  // To gRPC an empty text is the system's CAs, which are not who was named.
  if (parts.ca.empty()) parts.ca = "none";
  const auto credentials = grpc::SslCredentials({parts.ca, parts.private_key, parts.certificate});
  if (tokens_ == nullptr) return credentials;
  return grpc::CompositeChannelCredentials(
      credentials, grpc::MetadataCredentialsFromPlugin(std::make_unique<TokenOfFile>(tokens_)));
}

}  // namespace atelier
