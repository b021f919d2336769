#pragma once

#include <memory>

#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "libs/base/log.h"
#include "libs/transport/tls_files.h"

namespace atelier {

// Of one TCP port. The files are read for each connection that comes, so they may rotate. What it
// gives and `logger` must outlive the server.
std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const ServerSecurity& security,
                                                             const Logger& logger);

// Makes the credentials of one connection's channels, each with the files as they are by then.
class ChannelSecurity {
 public:
  // `logger` must outlive the channels.
  ChannelSecurity(const ClientSecurity& security, const Logger& logger);

  std::shared_ptr<grpc::ChannelCredentials> Credentials();
  // What certificates must be of; empty = the address's host.
  const std::string& server_name() const { return security_.server_name; }

 private:
  const ClientSecurity security_;
  TlsFiles files_;
  const std::shared_ptr<TokenFile> tokens_;  // null = none
};

}  // namespace atelier
