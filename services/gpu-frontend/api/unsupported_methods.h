#pragma once

#include <string>

#include "proto/compat/sglang_scheduler.grpc.pb.h"

namespace atelier {

// The RPCs of SglangScheduler that this server does not have: each answers UNIMPLEMENTED with what
// is missing, which the gateway tolerates.
class UnsupportedMethods : public sglang::grpc::scheduler::SglangScheduler::CallbackService {
 public:
  grpc::ServerUnaryReactor* Embed(grpc::CallbackServerContext* context,
                                  const sglang::grpc::scheduler::EmbedRequest*,
                                  sglang::grpc::scheduler::EmbedResponse*) override {
    return Refuse(context, "embeddings");
  }
  grpc::ServerUnaryReactor* StartProfile(grpc::CallbackServerContext* context,
                                         const smg::grpc::common::StartProfileRequest*,
                                         smg::grpc::common::ProfileResponse*) override {
    return Refuse(context, "profiling by RPC; /metrics has the time of each stage");
  }
  grpc::ServerUnaryReactor* StopProfile(grpc::CallbackServerContext* context,
                                        const smg::grpc::common::StopProfileRequest*,
                                        smg::grpc::common::ProfileResponse*) override {
    return Refuse(context, "profiling by RPC; /metrics has the time of each stage");
  }
  grpc::ServerUnaryReactor* LoadLoRAAdapter(
      grpc::CallbackServerContext* context, const sglang::grpc::scheduler::LoadLoRAAdapterRequest*,
      sglang::grpc::scheduler::LoadLoRAAdapterResponse*) override {
    return Refuse(context, "LoRA adapters");
  }
  grpc::ServerUnaryReactor* UnloadLoRAAdapter(
      grpc::CallbackServerContext* context,
      const sglang::grpc::scheduler::UnloadLoRAAdapterRequest*,
      sglang::grpc::scheduler::UnloadLoRAAdapterResponse*) override {
    return Refuse(context, "LoRA adapters");
  }
  grpc::ServerUnaryReactor* ListLoadedLoRAAdapters(
      grpc::CallbackServerContext* context,
      const sglang::grpc::scheduler::ListLoadedLoRAAdaptersRequest*,
      sglang::grpc::scheduler::ListLoadedLoRAAdaptersResponse*) override {
    return Refuse(context, "LoRA adapters");
  }
  grpc::ServerWriteReactor<smg::grpc::common::KvEventBatch>* SubscribeKvEvents(
      grpc::CallbackServerContext*, const smg::grpc::common::SubscribeKvEventsRequest*) override {
    return new RefusedStream(Unsupported("KV events"));
  }

 private:
  class RefusedStream final : public grpc::ServerWriteReactor<smg::grpc::common::KvEventBatch> {
   public:
    explicit RefusedStream(const grpc::Status& status) { Finish(status); }
    void OnDone() override { delete this; }
  };

  static grpc::Status Unsupported(const std::string& what) {
    return {grpc::StatusCode::UNIMPLEMENTED, "this server does not support " + what};
  }
  static grpc::ServerUnaryReactor* Refuse(grpc::CallbackServerContext* context,
                                          const std::string& what) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(Unsupported(what));
    return reactor;
  }
};

}  // namespace atelier
