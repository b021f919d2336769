#pragma once

#include <cstddef>
#include <vector>

namespace atelier {

// The ways in which two processes can exchange bytes with nothing in between: what a transport over
// them cannot beat.
enum class RawWay { kSharedSpin, kSharedFutex, kUnixSocket, kTcpSocket };

// Seconds of each of `rounds` round trips of `bytes` there and back with a child process, both
// sides copying them in and out; after a tenth as many that are not counted. REQUIRES: this process
// has started no thread yet. Empty when the system refuses.
std::vector<double> RawPingPong(RawWay way, size_t bytes, int rounds);

}  // namespace atelier
