#pragma once

#include "absl/time/time.h"
#include "proto/compat/sglang_scheduler.pb.h"
#include "services/gpu-frontend/api/served_model.h"
#include "services/gpu-frontend/engine/engine.h"

namespace atelier {

// What the server says of itself, in the gateway's words. Pure functions; token counts beyond int32
// are capped.

void FillModelInfo(const ServedModel& model,
                   sglang::grpc::scheduler::GetModelInfoResponse* response);

struct ServerTimes {
  absl::Time now;
  absl::Time started;
  absl::Time last_request;  // absl::InfinitePast() = none yet
};
void FillServerInfo(const ServedModel& model, const EngineLoad& load, const ServerTimes& times,
                    sglang::grpc::scheduler::GetServerInfoResponse* response);

void FillLoads(const ServedModel& model, const EngineLoad& load, absl::Time now,
               sglang::grpc::scheduler::GetLoadsResponse* response);

}  // namespace atelier
