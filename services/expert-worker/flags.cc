#include "services/expert-worker/flags.h"

#include <iterator>
#include <memory>
#include <utility>

namespace atelier {
namespace {

constexpr char kUsage[] =
    "usage: expert-worker --model-path=FOLDER [flags]\n"
    "\n"
    "Holds experts of a mixture-of-experts model in the memory of one NUMA node and computes them\n"
    "for any number of frontends. One process per node; together they hold every expert:\n"
    "\n"
    "  expert-worker --model-path=/models/m --shard-slice=0/2 --listen=127.0.0.1:7070\n"
    "  expert-worker --model-path=/models/m --shard-slice=1/2 --listen=unix:/run/atelier/1.sock "
    "\\\n"
    "                --numa-node=1 --metrics-address=127.0.0.1:9401\n"
    "  gpu-frontend  --model-path=/models/m --workers=127.0.0.1:7070,unix:/run/atelier/1.sock\n"
    "\n"
    "exit status: 0 stopped by a signal, after a drain; 1 could not start (with the reason); 2 "
    "bad\n"
    "flags; 130 or 143 ended at once by a second signal.";

FlagSection WeightFlags(WorkerOptions* o) {
  return {
      "Weights",
      {StringFlag("model-path", "PATH",
                  "Checkpoint: a folder in the Hugging Face layout (config.json and safetensors), "
                  "or a GGUF file (of a split set the first one). Required.",
                  &o->model_path),
       StringFlag(
           "shard-slice", "I/N",
           "Holds slice I of N of every expert's intermediate dimension, e.g. 0/2 and 1/2 on "
           "two nodes. Balances perfectly; the usual choice on one host.",
           &o->shard_slice),
       StringFlag("experts", "A-B",
                  "Holds only experts A to B, both included, e.g. 0-7. For several hosts. Default: "
                  "all of them.",
                  &o->experts),
       StringFlag("placement", "FILE",
                  "Holds what this file of `atelier plan` gives to the worker named by --worker, "
                  "instead of --experts or --shard-slice.",
                  &o->placement),
       StringFlag("worker", "NAME", "Which worker of --placement this one is.", &o->worker),
       StringFlag("skip-experts", "FILE",
                  "Does not hold the experts that FILE names, because the frontends compute them "
                  "themselves: lines LAYER: EXPERTS, e.g. 3: 0-7,12. Rows sent for them are "
                  "refused. Default: none.",
                  &o->skip_experts),
       ChoiceFlag("method", MethodChoices(),
                  "How experts are kept and computed. auto keeps the published precision: bf16 for "
                  "floats; int4 (compressed-tensors, GPTQ, AWQ), mxfp4, fp8 and mxfp8 as they are. "
                  "The others requantise floats: int8 with one scale per output row halves memory "
                  "and time; int4_gN, with a searched scale per N inputs, mxfp4 and q8_0 go "
                  "further.",
                  &o->method),
       StringFlag("store-dir", "FOLDER",
                  "Keeps the packed weights in files of this folder (a disk, tmpfs or hugetlbfs), "
                  "maps them, and makes those that are missing: the next start is immediate. "
                  "Workers may share it. Default: packed into memory at every start.",
                  &o->store_dir),
       SwitchFlag("populate",
                  "With --store-dir: reads all weights before serving, instead of each page when "
                  "it is first used.",
                  &o->populate)}};
}

// Repeatable, and a list each time: the first one replaces the default.
FlagSpec ListenFlag(WorkerOptions* o) {
  auto more = std::make_shared<std::vector<std::string>>();
  FlagSpec flag = ListFlag("listen", "ADDRESS,...",
                           "Where frontends reach this worker (gRPC): HOST:PORT, [V6]:PORT or "
                           "unix:/PATH; port 0 = any free one, see --ready-file. May be repeated.",
                           &o->listen);
  flag.repeatable = true;
  flag.set = [o, more, set_all = std::move(flag.set)](absl::string_view text) -> absl::Status {
    if (absl::Status status = set_all(text); !status.ok()) return status;
    more->insert(more->end(), o->listen.begin(), o->listen.end());
    o->listen = *more;
    return absl::OkStatus();
  };
  return flag;
}

FlagSection NetworkFlags(WorkerOptions* o) {
  return {
      "Network",
      {ListenFlag(o),
       StringFlag("tls-cert", "FILE",
                  "Speaks TLS on TCP addresses, with this certificate (PEM, followed by those "
                  "between it and its CA). Read again when it changes, like the files below. "
                  "Unix sockets stay as they are. Default: plaintext.",
                  &o->security.certificate),
       StringFlag("tls-key", "FILE", "The private key of --tls-cert (PEM, without a password).",
                  &o->security.private_key),
       StringFlag("tls-client-ca", "FILE",
                  "Lets in only clients that show a certificate signed by one of these (mutual "
                  "TLS).",
                  &o->security.client_ca),
       StringFlag("token-file", "FILE",
                  "Lets in only calls that bring one of its tokens, a line each (authorization: "
                  "Bearer TOKEN). Needs TLS.",
                  &o->security.token_file),
       SwitchFlag("insecure",
                  "Allows a --listen address that other machines reach in plaintext: only for "
                  "networks you trust.",
                  &o->insecure),
       StringFlag("metrics-address", "HOST:PORT",
                  "HTTP for Prometheus (/metrics) and probes (/healthz, /readyz); port 0 = any "
                  "free one.",
                  &o->metrics_address),
       StringFlag("ready-file", "PATH",
                  "Written once calls are served, with lines listen=ADDRESS,... and "
                  "metrics=HOST:PORT; removed when the worker drains.",
                  &o->ready_file)}};
}

FlagSection SharedMemoryFlags(WorkerOptions* o) {
  return {
      "Shared memory",
      {StringFlag("shm-listen", "PATH",
                  "Unix socket over which frontends on this host share memory with this worker "
                  "(--workers=shm:PATH): microseconds a call instead of a hundred. Containers need "
                  "to share only its folder. Off unless given.",
                  &o->shm_listen),
       ListFlag("shm-allow-uids", "UID,...",
                "Users whose processes may connect there, by the kernel's word. Default: only the "
                "user that this worker runs as.",
                &o->shm_allow_uids),
       IntFlag("shm-max-clients", "Clients that may be connected there; one more is refused.",
               {1, 1024}, &o->shm_max_clients),
       BytesFlag("shm-bytes-per-client",
                 "Memory shared with each client, 1MiB to 64GiB; touched only as far as it is "
                 "used. Larger batches go through it in turns.",
                 &o->shm_bytes_per_client),
       DurationFlag(
           "shm-spin",
           "How long either side looks for the next message before it sleeps, 0 to 10ms. "
           "Shrinks by itself where looking does not pay; 0 = sleep at once, for CPUs that "
           "others need.",
           &o->shm_spin)}};
}

FlagSection ComputeFlags(WorkerOptions* o) {
  return {
      "Compute",
      {IntFlag("numa-node",
               "Node whose CPUs and memory are used. -1 = that of the lowest CPU this process may "
               "run on.",
               {-1, 1023}, &o->numa_node),
       IntFlag("threads",
               "0 = one per CPU of the node that this process may use, at most its CPU quota "
               "rounded up.",
               {0, 4096}, &o->threads),
       SwitchFlag("pin-threads",
                  "Pins each thread to a CPU. --pin-threads=false when others share the CPUs. "
                  "Default: true.",
                  &o->pin_threads),
       {"no-pin", "", "The same as --pin-threads=false.",
        [o](absl::string_view text) -> absl::Status {
          if (text != "true") return absl::InvalidArgumentError("takes no value");
          o->pin_threads = false;
          return absl::OkStatus();
        }},
       ChoiceFlag("cpu-isa", {"auto", "scalar", "avx2", "avxvnni", "avx512", "amx"},
                  "Caps the instruction set of the kernels. auto = the best this CPU has.",
                  &o->cpu_isa),
       SwitchFlag("capabilities",
                  "Prints which methods run on which instruction sets of this CPU, and exits.",
                  &o->capabilities)}};
}

FlagSection LimitFlags(WorkerOptions* o) {
  return {
      "Limits",
      {IntFlag("max-tokens-per-call", "Rows of one call; also of a merged batch.", {1, 1 << 20},
               &o->max_tokens_per_call),
       IntFlag("max-queued-calls",
               "Calls that may wait; one more is refused with RESOURCE_EXHAUSTED.", {1, 1 << 20},
               &o->max_queued_calls),
       IntFlag("max-queued-tokens", "Rows that may wait, all calls together: bounds memory.",
               {1, 1 << 24}, &o->max_queued_tokens),
       BytesFlag("max-message-bytes", "Of one gRPC message, 64KiB to 2GiB.", &o->max_message_bytes),
       DurationFlag("default-timeout", "Deadline of calls that bring none.", &o->default_timeout)}};
}

FlagSection ProcessFlags(WorkerOptions* o) {
  return {"Process",
          {DurationFlag("drain-timeout",
                        "After SIGTERM or Ctrl-C: how long calls in flight may take to end. A "
                        "second signal ends the process at once.",
                        &o->drain_timeout),
           ChoiceFlag("log-level", {"debug", "info", "warning", "error"},
                      "Lowest severity of log lines (on standard error).", &o->log_level)}};
}

}  // namespace

FlagTable WorkerFlags(WorkerOptions* options) {
  return FlagTable(kUsage, {WeightFlags(options), NetworkFlags(options), SharedMemoryFlags(options),
                            ComputeFlags(options), LimitFlags(options), ProcessFlags(options)});
}

}  // namespace atelier
