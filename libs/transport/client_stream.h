#pragma once

#include <list>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/client_callback.h"
#include "libs/transport/call_stream.h"
#include "proto/atelier/v1/expert.pb.h"

namespace atelier {

// One ForwardStream of gRPC. The observer must live until OnStreamDone.
class ClientStream final : public CallStream,
                           public grpc::ClientBidiReactor<grpc::ByteBuffer, v1::ForwardResponse> {
 public:
  // `bind` attaches the stream to a call that has not started.
  static std::shared_ptr<ClientStream> Open(absl::FunctionRef<void(ClientStream&)> bind,
                                            Observer& observer);

  Limits limits() const override;
  absl::Status Send(const CallMessage& message) override;
  void Cancel(uint64_t id) override;

 private:
  struct Outgoing {
    uint64_t id = 0;
    grpc::ByteBuffer message;
  };

  explicit ClientStream(Observer& observer) : observer_(observer) {}

  void Write(uint64_t id, grpc::ByteBuffer message);
  // Takes back a message that has not begun to leave; false if it has.
  bool Withdraw(uint64_t id);

  void OnReadInitialMetadataDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  Observer& observer_;
  std::shared_ptr<ClientStream> self_;  // released by OnDone
  v1::ForwardResponse incoming_;        // gRPC's while a read is outstanding

  absl::Mutex mutex_;
  std::list<Outgoing> writes_ ABSL_GUARDED_BY(mutex_);  // the first is being written
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;         // no operation may follow
};

}  // namespace atelier
