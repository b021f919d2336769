#pragma once

#include <memory>

#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "libs/transport/security.h"

namespace atelier {

// Of a TCP port. The files are watched.
std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const ServerSecurity& security);

// Of channels to TCP ports. The files are watched for as long as the credentials live.
std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(const ClientSecurity& security);

}  // namespace atelier
