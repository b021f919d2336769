#include "libs/transport/grpc_tuning.h"

#include <algorithm>
#include <limits>

namespace atelier {
namespace {

// Above 64 KiB gRPC's default windows and 8 KiB reads cost more than the copy itself.
constexpr int kLookaheadBytes = 16 << 20;
constexpr int kMaxFrameBytes = (16 << 20) - 1;
constexpr int kReadChunkBytes = 1 << 20;

// A worker that is frozen or behind a dead link is given up after the sum of both.
constexpr int kKeepaliveTimeMs = 10'000;
constexpr int kKeepaliveTimeoutMs = 5'000;
// Pings closer than this from a client with nothing to say get the connection closed.
constexpr int kMinPingIntervalMs = 5'000;

template <typename SetInt>
void SetCommon(SetInt&& set) {
  set(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kLookaheadBytes);
  set(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kMaxFrameBytes);
  set(GRPC_ARG_TCP_READ_CHUNK_SIZE, kReadChunkBytes);
  set(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  set(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
}

int ToLimit(int64_t bytes) {
  return static_cast<int>(std::min<int64_t>(bytes, std::numeric_limits<int>::max()));
}

}  // namespace

grpc::ChannelArguments TunedChannelArguments() {
  grpc::ChannelArguments args;
  SetCommon([&](const char* name, int value) { args.SetInt(name, value); });
  args.SetMaxReceiveMessageSize(ToLimit(kMaxMessageBytes + kMessageOverheadBytes));
  args.SetMaxSendMessageSize(-1);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // Replaying is the client library's business, and retry buffers copy.
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return args;
}

void TuneServer(grpc::ServerBuilder& builder, int64_t max_message_bytes) {
  SetCommon([&](const char* name, int value) { builder.AddChannelArgument(name, value); });
  builder.SetMaxReceiveMessageSize(ToLimit(max_message_bytes + kMessageOverheadBytes));
  builder.SetMaxSendMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // A client that vanished without a word (power, cable) is noticed, and its work dropped.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

}  // namespace atelier
