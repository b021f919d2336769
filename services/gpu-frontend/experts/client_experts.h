#pragma once

#include <memory>

#include "services/gpu-frontend/experts/remote_experts.h"

namespace atelier {

class ExpertClient;

// The experts that `client` reaches; the client must outlive them. The engine's thread calls it.
std::unique_ptr<RemoteExperts> CreateClientExperts(ExpertClient& client);

}  // namespace atelier
