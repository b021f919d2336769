#pragma once

#include <cstdint>

#include "grpcpp/channel.h"
#include "grpcpp/server_builder.h"

namespace atelier {

// What a client accepts, and the most it sends at once, whatever the worker allows.
inline constexpr int64_t kMaxMessageBytes = int64_t{256} << 20;
// Room beside the tensors of a message: scalars, digest, tags, lengths.
inline constexpr int64_t kMessageOverheadBytes = 4096;

// Windows, frames and read chunks for tensors of 10 KiB to 100 MiB; pings that notice a frozen or
// vanished peer; one connection per channel.
grpc::ChannelArguments TunedChannelArguments();

// The server's side of the same, and exclusive ports: a second server on a port is an error.
void TuneServer(grpc::ServerBuilder& builder, int64_t max_message_bytes);

}  // namespace atelier
