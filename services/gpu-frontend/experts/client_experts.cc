#include "services/gpu-frontend/experts/client_experts.h"

#include <utility>

#include "libs/base/status_macros.h"
#include "libs/client/client.h"

namespace atelier {
namespace {

class ClientCall final : public ExpertsInFlight {
 public:
  explicit ClientCall(std::unique_ptr<PendingForward> pending) : pending_(std::move(pending)) {}
  absl::Status Wait(float* out) override { return pending_->Wait(out); }

 private:
  std::unique_ptr<PendingForward> pending_;
};

class ClientExperts final : public RemoteExperts {
 public:
  explicit ClientExperts(ExpertClient& client) : client_(client) {}

  absl::StatusOr<std::unique_ptr<ExpertsInFlight>> Begin(int layer, const TokenBatch& batch,
                                                         const Routing& routing,
                                                         bool prefill) override {
    ForwardCall call;
    call.layer = layer;
    call.batch = batch;
    call.routing = routing;
    call.priority = prefill ? CallPriority::kPrefill : CallPriority::kDecode;
    ATELIER_ASSIGN_OR_RETURN(std::unique_ptr<PendingForward> pending, client_.Forward(call));
    return std::make_unique<ClientCall>(std::move(pending));
  }

 private:
  ExpertClient& client_;
};

}  // namespace

std::unique_ptr<RemoteExperts> CreateClientExperts(ExpertClient& client) {
  return std::make_unique<ClientExperts>(client);
}

}  // namespace atelier
