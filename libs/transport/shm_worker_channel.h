#pragma once

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "libs/transport/worker_channel.h"

namespace atelier {

inline constexpr absl::string_view kShmScheme = "shm:";

// "shm:/path" of a worker's --shm-listen socket. Returns at once; what cannot be reached fails when
// it is used.
std::unique_ptr<WorkerChannel> OpenShmChannel(const std::string& address);

}  // namespace atelier
