#include "services/gpu-frontend/flags.h"

#include <limits>
#include <utility>

namespace atelier {
namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int>::max();

constexpr char kUsage[] =
    "usage: gpu-frontend --model-path=FOLDER --workers=ADDRESS,... [flags]\n"
    "\n"
    "Runs everything of a mixture-of-experts model but its routed experts, which it asks expert\n"
    "workers for, and serves it to Shepherd Model Gateway, which adds the OpenAI API:\n"
    "\n"
    "  expert-worker --model-path=/models/m --listen=127.0.0.1:7070\n"
    "  gpu-frontend --model-path=/models/m --workers=127.0.0.1:7070\n"
    "  smg launch --worker-urls grpc://127.0.0.1:20000 --port 30000\n"
    "\n"
    "exit status: 0 stopped by a signal; 1 could not start (with the reason); 2 bad flags.";

FlagSection ModelFlags(FrontendOptions* o) {
  return {
      "Model",
      {StringFlag("model-path", "PATH",
                  "Checkpoint: a folder in the Hugging Face layout (config.json and safetensors), "
                  "or a GGUF file (of a split set the first one); the same one that the workers "
                  "read. Required.",
                  &o->model_path),
       StringFlag("served-model-name", "NAME",
                  "The model's id in the OpenAI API. Default: the folder's name.",
                  &o->served_model_name),
       StringFlag("tokenizer-path", "PATH",
                  "The folder of the tokenizer's files; the gateway reads them there, or fetches "
                  "them from this process. Or a GGUF file that holds a byte-level BPE tokenizer, "
                  "which the gateway fetches. Default: --model-path.",
                  &o->tokenizer_path),
       StringFlag("advertised-path", "PATH",
                  "Told to the gateway instead of --tokenizer-path and --model-path. Give / "
                  "when the gateway runs on another machine: it then fetches the tokenizer "
                  "from here at once instead of asking a model hub first.",
                  &o->advertised_path),
       IntFlag("context-length",
               "Tokens of prompt and answer together. 0 = what the model was made for.",
               {0, kMaxInt}, &o->context_length)}};
}

FlagSection NetworkFlags(FrontendOptions* o) {
  return {
      "Network",
      {StringFlag("host", "ADDRESS", "Where the gateway reaches this process (gRPC).", &o->host),
       IntFlag("port", "Its port; 0 = any free one, see --ready-file.", {0, 65535}, &o->port),
       SwitchFlag("insecure",
                  "Allows a --host that other machines reach (the gateway knows neither TLS nor "
                  "tokens towards engines) and workers on other machines without --worker-tls-ca: "
                  "only for networks you trust.",
                  &o->insecure),
       StringFlag("metrics-address", "HOST:PORT",
                  "HTTP for Prometheus (/metrics) and probes (/healthz, /readyz); port 0 = any "
                  "free one.",
                  &o->metrics_address),
       StringFlag("ready-file", "PATH",
                  "Written once requests are served, with lines listen=HOST:PORT and "
                  "metrics=HOST:PORT.",
                  &o->ready_file)}};
}

FlagSection WorkerFlags(FrontendOptions* o) {
  return {
      "Expert workers",
      {ListFlag("workers", "ADDRESS,...",
                "The workers that hold the experts, together all of them: HOST:PORT, [V6]:PORT, "
                "unix:/PATH, or shm:/PATH of a worker's --shm-listen on this host (the "
                "fastest). Workers that hold the same are replicas: any of them may die without "
                "effect on requests. Required.",
                &o->workers),
       StringFlag("worker-tls-ca", "FILE",
                  "Speaks TLS to workers at TCP addresses and takes only those whose certificate "
                  "one of these (PEM) signed. Read again when it changes, like the files below. "
                  "Default: plaintext.",
                  &o->worker_security.ca),
       StringFlag("worker-tls-cert", "FILE",
                  "Shown to workers that ask for a certificate (their --tls-client-ca).",
                  &o->worker_security.certificate),
       StringFlag("worker-tls-key", "FILE",
                  "The private key of --worker-tls-cert (PEM, without a password).",
                  &o->worker_security.private_key),
       StringFlag("worker-tls-server-name", "NAME",
                  "The name that workers' certificates must be of. Default: the host of the "
                  "worker's address.",
                  &o->worker_security.server_name),
       StringFlag("worker-token-file", "FILE",
                  "Its one line goes with every call, for workers with --token-file. Needs TLS.",
                  &o->worker_security.token_file),
       DurationFlag("worker-timeout",
                    "How long one layer's call may take before the requests in it fail.",
                    &o->worker_timeout),
       DurationFlag("connect-timeout",
                    "How long to wait at start until every expert is held by some worker.",
                    &o->connect_timeout),
       IntFlag("hedge-percent",
               "How many calls, in percent, may also go to another replica because the first is "
               "late. A replica that seems frozen, or failed, is left for another in any case.",
               {0, 100}, &o->hedge_percent),
       DurationFlag("replica-grace",
                    "How long a call waits for a replica to come back when a shard has several "
                    "and none is left, before its requests fail.",
                    &o->replica_grace)}};
}

FlagSpec DeviceFlag(FrontendOptions* o) {
  FlagSpec flag =
      ChoiceFlag("device", {"cpu"},
                 "Where attention and the rest run. Other devices are not built yet.", &o->device);
  flag.set = [choose = std::move(flag.set)](absl::string_view text) {
    return text == "cuda" ? absl::InvalidArgumentError("not built yet; use --device=cpu")
                          : choose(text);
  };
  return flag;
}

FlagSection ComputeFlags(FrontendOptions* o) {
  return {
      "Compute",
      {DeviceFlag(o),
       StringFlag("device-experts", "FILE",
                  "The device computes the routed experts that FILE names (lines LAYER: "
                  "EXPERTS, e.g. 3: 0-7,12), in bf16; no row is sent to workers for them, which "
                  "need not hold them (expert-worker --skip-experts=FILE). Default: none.",
                  &o->device_experts),
       IntFlag("threads", "CPU threads. 0 = the CPUs this process may use.", {0, 4096},
               &o->threads),
       ChoiceFlag(
           "cpu-isa", {"auto", "scalar", "avx2", "avxvnni", "avx512", "amx"},
           "Caps the instruction set of the CPU kernels of attention and the rest (the experts "
           "are the workers' own). auto = the best this CPU has.",
           &o->cpu_isa)}};
}

FlagSection SchedulingFlags(FrontendOptions* o) {
  return {
      "Scheduling and memory",
      {IntFlag("max-running-requests", "Sequences computed in one step.", {1, 65536},
               &o->max_running_requests),
       IntFlag("max-queued-requests",
               "Requests that may wait; one more is refused (HTTP 429 at the gateway).",
               {1, kMaxInt}, &o->max_queued_requests),
       BytesFlag("kv-cache-bytes",
                 "Memory for keys and values, taken at start, never more. When it is full the "
                 "youngest request is put back and computed again later.",
                 &o->kv_cache_bytes),
       IntFlag("max-total-tokens",
               "Caps the tokens in the KV cache. 0 = as many as --kv-cache-bytes holds.",
               {0, std::numeric_limits<int64_t>::max()}, &o->max_total_tokens),
       IntFlag("page-size", "Tokens per block of the KV cache.", {1, 256}, &o->page_size),
       IntFlag("chunked-prefill-size",
               "Prompt tokens per step, all requests together, at most: larger = faster prompts "
               "of a request that is alone.",
               {1, 1 << 19}, &o->chunked_prefill_size),
       DurationFlag("max-step-time",
                    "What a step that several requests share should last: it then holds fewer "
                    "prompt tokens than --chunked-prefill-size, but at least 16. So long may a "
                    "prompt hold up other streams, and a gone client cost work. Smaller = "
                    "smoother streams, larger = faster prompts. 0s = no bound by time.",
                    &o->max_step_time),
       SwitchFlag("disable-prefix-cache",
                  "Computes equal beginnings of prompts anew instead of reusing their keys and "
                  "values.",
                  &o->disable_prefix_cache),
       IntFlag("stream-interval", "Tokens per streamed chunk, at least; the first comes alone.",
               {1, 1024}, &o->stream_interval),
       IntFlag("random-seed",
               "Seeds sampling of requests that bring no seed. -1 = a fresh one per start.",
               {-1, std::numeric_limits<int64_t>::max()}, &o->random_seed)}};
}

FlagSection ProcessFlags(FrontendOptions* o) {
  return {"Process",
          {DurationFlag("drain-timeout",
                        "After SIGTERM or Ctrl-C: how long running requests may take to end. A "
                        "second signal ends them at once.",
                        &o->drain_timeout),
           ChoiceFlag("log-level", {"debug", "info", "warning", "error"},
                      "Lowest severity of log lines (on standard error).", &o->log_level)}};
}

}  // namespace

FlagTable FrontendFlags(FrontendOptions* options) {
  return FlagTable(kUsage,
                   {ModelFlags(options), NetworkFlags(options), WorkerFlags(options),
                    ComputeFlags(options), SchedulingFlags(options), ProcessFlags(options)});
}

}  // namespace atelier
