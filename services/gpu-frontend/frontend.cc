#include "services/gpu-frontend/frontend.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "libs/base/endpoint.h"
#include "libs/base/ready_file.h"
#include "libs/base/status_macros.h"
#include "libs/base/version.h"
#include "libs/checkpoint/gguf_tokenizer.h"
#include "services/gpu-frontend/api/sampling_defaults.h"

namespace atelier {
namespace {

constexpr absl::Duration kDrainPoll = absl::Milliseconds(10);
// For the last bytes of streams whose requests have ended.
constexpr absl::Duration kFlushGrace = absl::Seconds(2);

// The whole file; empty when there is none.
std::string ReadOptionalFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

bool IsFile(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

// Of a folder, or of a GGUF file's metadata.
absl::StatusOr<TokenizerArchive> FindTokenizer(const std::string& path) {
  if (!IsFile(path)) return PackTokenizer(path);
  ATELIER_ASSIGN_OR_RETURN(const TokenizerFiles files, ReadGgufTokenizer(path));
  return PackTokenizerFiles(files, path);
}

absl::StatusOr<std::string> SamplingDefaultsOf(const std::string& model_path) {
  const std::string text = ReadOptionalFile(model_path + "/generation_config.json");
  if (text.empty()) return std::string();
  return DefaultSamplingParams(text);
}

}  // namespace

absl::string_view FrontendStateName(FrontendState state) {
  static constexpr std::array<absl::string_view, 5> kNames = {"starting", "loading", "serving",
                                                              "draining", "stopped"};
  return kNames[static_cast<size_t>(state)];
}

Frontend::Frontend(const FrontendOptions& options, ModelLoader loader, Clock& clock,
                   const Logger& logger)
    : options_(options),
      loader_(std::move(loader)),
      clock_(clock),
      logger_(logger),
      metrics_(registry_),
      client_metrics_(registry_) {}

absl::StatusOr<std::unique_ptr<Frontend>> Frontend::Start(const FrontendOptions& options,
                                                          ModelLoader loader, Clock& clock,
                                                          const Logger& logger) {
  std::unique_ptr<Frontend> frontend(new Frontend(options, std::move(loader), clock, logger));
  ATELIER_RETURN_IF_ERROR(frontend->Listen());
  return frontend;
}

Frontend::~Frontend() {
  observability_.reset();  // its threads ask Ready()
  api_.reset();            // its calls use the engine
}

absl::Status Frontend::Listen() {
  ApiServerOptions api;
  api.listen = options_.ListenAddress();
  api.stream_interval = options_.stream_interval;
  ATELIER_ASSIGN_OR_RETURN(api_, ApiServer::Start(api, clock_, logger_));
  ObservabilityOptions observability;
  ATELIER_ASSIGN_OR_RETURN(observability.listen, ParseEndpoint(options_.metrics_address));
  observability.metrics = &registry_;
  observability.ready = [this] { return Ready(); };
  ATELIER_ASSIGN_OR_RETURN(observability_, ObservabilityServer::Start(observability));
  logger_.Info(
      "frontend_listening",
      {Kv("api", address()), Kv("metrics", metrics_address()), Kv("version", Version()),
       Kv("model_path", options_.model_path), Kv("workers", absl::StrJoin(options_.workers, ",")),
       Kv("device", options_.device), Kv("kv_cache_bytes", options_.kv_cache_bytes),
       Kv("max_running_requests", options_.max_running_requests),
       Kv("chunked_prefill_size", options_.chunked_prefill_size),
       Kv("max_step_time", absl::FormatDuration(options_.max_step_time))});
  return absl::OkStatus();
}

absl::Status Frontend::Load() {
  Advance(FrontendState::kLoading);
  absl::Status status = LoadAndPublish();
  if (!status.ok()) Advance(FrontendState::kStopped);
  return status;
}

absl::Status Frontend::LoadAndPublish() {
  const absl::Time start = clock_.Now();
  const LoaderContext context{clock_, logger_, metrics_, client_metrics_,
                              [this](const std::string& what) { ReportWaiting(what); }};
  absl::StatusOr<TokenizerArchive> tokenizer = FindTokenizer(options_.tokenizer_path);
  ATELIER_RETURN_IF_ERROR(CheckTokenizer(tokenizer.status()));
  ATELIER_ASSIGN_OR_RETURN(model_, loader_(options_, context));
  ATELIER_RETURN_IF_ERROR(Publish(std::move(tokenizer)));
  logger_.Info("frontend_serving", {Kv("api", address()), Kv("metrics", metrics_address()),
                                    Kv("model", options_.served_model_name),
                                    Kv("seconds", absl::ToDoubleSeconds(clock_.Now() - start))});
  return absl::OkStatus();
}

absl::Status Frontend::CheckTokenizer(const absl::Status& packed) const {
  if (packed.ok()) return absl::OkStatus();
  if (!absl::IsNotFound(packed) && !absl::IsUnimplemented(packed)) return packed;
  // A folder that somebody named is meant; a checkpoint may come without a tokenizer.
  if (options_.tokenizer_path != options_.model_path) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tokenizer-path=", options_.tokenizer_path, ": ", packed.message()));
  }
  logger_.Warning("no_tokenizer", {Kv("reason", packed.message()),
                                   Kv("effect", "a gateway needs its own --tokenizer-path")});
  return absl::OkStatus();
}

absl::StatusOr<ServedModel> Frontend::DescribeModel() const {
  ServedModel model = model_->Describe();
  // A gateway reads no GGUF: it shall fetch the tokenizer from here.
  const bool must_fetch = options_.advertised_path.empty() && IsFile(options_.tokenizer_path);
  const std::string advertised = must_fetch ? std::string("/") : options_.advertised_path;
  model.model_path = advertised.empty() ? options_.model_path : advertised;
  model.tokenizer_path = advertised.empty() ? options_.tokenizer_path : advertised;
  model.served_model_name = options_.served_model_name;
  model.server_version = std::string(Version());
  model.device = options_.device;
  ATELIER_ASSIGN_OR_RETURN(model.default_sampling_params_json,
                           SamplingDefaultsOf(options_.model_path));
  return model;
}

absl::Status Frontend::Publish(absl::StatusOr<TokenizerArchive> tokenizer) {
  ApiBackend backend;
  backend.engine = &model_->engine();
  ATELIER_ASSIGN_OR_RETURN(backend.model, DescribeModel());
  backend.tokenizer = std::move(tokenizer);
  api_->Serve(std::move(backend));
  Advance(FrontendState::kServing);
  if (options_.ready_file.empty()) return absl::OkStatus();
  return WriteReadyFile(options_.ready_file,
                        {{"listen", address()}, {"metrics", metrics_address()}});
}

void Frontend::Drain(const std::function<bool()>& hurry) {
  if (!Advance(FrontendState::kDraining)) return;
  if (!options_.ready_file.empty()) RemoveReadyFile(options_.ready_file);
  api_->Drain();
  absl::Duration grace = absl::ZeroDuration();
  if (model_ != nullptr) {
    Engine& engine = model_->engine();
    engine.Drain();
    const absl::Time deadline = clock_.Now() + options_.drain_timeout;
    while (!engine.Idle() && clock_.Now() < deadline && !hurry()) absl::SleepFor(kDrainPoll);
    if (engine.Idle()) grace = kFlushGrace;
  }
  api_->Shutdown(grace);
  Advance(FrontendState::kStopped);
}

absl::Status Frontend::Ready() const {
  const FrontendState now = state();
  if (now == FrontendState::kServing) return model_->Ready();
  absl::MutexLock lock(&mutex_);
  return absl::UnavailableError(absl::StrCat("the frontend is ", FrontendStateName(now),
                                             waiting_for_.empty() ? "" : ", ", waiting_for_));
}

void Frontend::ReportWaiting(const std::string& what) {
  api_->SetLoading(what);
  absl::MutexLock lock(&mutex_);
  waiting_for_ = what;
}

bool Frontend::Advance(FrontendState next) {
  absl::MutexLock lock(&mutex_);
  if (next <= state_) return false;
  logger_.Info("frontend_state",
               {Kv("from", FrontendStateName(state_)), Kv("to", FrontendStateName(next))});
  state_ = next;
  return true;
}

FrontendState Frontend::state() const {
  absl::MutexLock lock(&mutex_);
  return state_;
}

std::string Frontend::address() const {
  Endpoint endpoint;
  endpoint.host = options_.host;
  endpoint.port = api_->port();
  return endpoint.ToString();
}

std::string Frontend::metrics_address() const { return observability_->endpoint().ToString(); }

}  // namespace atelier
