"""Asks a question of the demo model through workers, frontend and gateway, and prints the answer as it streams.

Started by scripts/demo, which builds and installs everything first; standard library only.
"""
import argparse
import http.client
import json
import pathlib
import signal
import sys
import tempfile
import time

from atelier_stack import LOOPBACK, REPO, Stack, StackError


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__.splitlines()[0])
    parser.add_argument("--prompt", default="What is the capital of France?", help="the question (default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=120, help="length limit of the answer (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 = always the most likely token (default)")
    parser.add_argument("--method", choices=("auto", "bf16", "int8", "q8_0", "int4_g32", "int4_g64", "mxfp4"),
                        default="auto",
                        help="how the workers keep the experts in memory (default: as they are published)")
    parser.add_argument("--gguf", choices=("BF16", "Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_1"), metavar="TYPE",
                        help="serve the model as one GGUF file whose matrices are of TYPE, tokenizer included")
    parser.add_argument("--keep", action="store_true",
                        help="leave everything running after the answer, print a curl line to try; Ctrl-C stops it all")
    parser.add_argument("--model", type=pathlib.Path, default=REPO / "build" / "demo-model", help=argparse.SUPPRESS)
    parser.add_argument("--smg", type=pathlib.Path, default=REPO / ".venv" / "gateway" / "bin" / "smg",
                        help=argparse.SUPPRESS)
    parser.add_argument("--check-arguments", action="store_true", help=argparse.SUPPRESS)  # and do nothing
    arguments = parser.parse_args()
    if arguments.max_tokens < 1:
        parser.error(f"--max-tokens={arguments.max_tokens}: must be at least 1")
    if not 0 <= arguments.temperature <= 2:
        parser.error(f"--temperature={arguments.temperature}: must lie between 0 and 2")
    if arguments.gguf:
        arguments.model = REPO / "build" / f"demo-model-{arguments.gguf}.gguf"
    return arguments


def say(text: str):
    print(f"\n==> {text}", flush=True)


def start(stack: Stack, arguments: argparse.Namespace):
    """Two workers with half of every expert each, one over TCP and one over a Unix socket; then frontend and gateway."""
    say(f"two expert workers ({arguments.method}), each with one half of every expert")
    socket_path = stack.run_dir / "worker-1.sock"
    flags = [f"--method={arguments.method}", "--threads=1"]
    workers = [stack.start_worker("worker-0", arguments.model, f"{LOOPBACK}:0", "--shard-slice=0/2", *flags),
               stack.start_worker("worker-1", arguments.model, f"unix:{socket_path}", "--shard-slice=1/2", *flags)]
    ready = [worker.wait_ready() for worker in workers]
    for worker, facts in zip(workers, ready):
        print(f"    {worker.name}: {facts['listen']}   metrics http://{facts['metrics']}/metrics")
    say("frontend (attention, router, shared expert, scheduler)")
    frontend = stack.start_frontend(arguments.model, [facts["listen"] for facts in ready],
                                    "--served-model-name=atelier-demo")
    facts = frontend.wait_ready()
    print(f"    frontend: {facts['listen']}   metrics http://{facts['metrics']}/metrics")
    say("gateway (smg, unmodified): the OpenAI API")
    gateway = stack.start_gateway(arguments.smg, facts["listen"])
    gateway.wait_ready()
    print(f"    gateway: {gateway.url}/v1")
    return gateway


def request_body(arguments: argparse.Namespace) -> dict:
    return {"model": "atelier-demo", "stream": True, "max_tokens": arguments.max_tokens,
            "temperature": arguments.temperature, "stream_options": {"include_usage": True},
            "messages": [{"role": "user", "content": arguments.prompt}]}


def stream_events(gateway, body: dict):
    """The decoded events of a streaming chat completion."""
    connection = http.client.HTTPConnection(LOOPBACK, gateway.port, timeout=120)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise StackError(f"the gateway answered {response.status}: {response.read().decode(errors='replace')}")
    for line in response:
        data = line.decode().removeprefix("data:").strip() if line.startswith(b"data:") else ""
        if data and data != "[DONE]":
            event = json.loads(data)
            if "error" in event:
                raise StackError(f"the stream ended with an error: {data}")
            yield event


def ask(gateway, arguments: argparse.Namespace):
    say(f"question: {arguments.prompt}")
    print("    answer: ", end="", flush=True)
    begin, first, usage, text = time.monotonic(), None, {}, ""
    for event in stream_events(gateway, request_body(arguments)):
        usage = event.get("usage") or usage
        for choice in event.get("choices", []):
            piece = choice.get("delta", {}).get("content") or ""
            if piece:
                first = first or time.monotonic()
                text += piece
                print(piece, end="", flush=True)
    end = time.monotonic()
    print()
    if not text.strip():
        raise StackError("the answer is empty")
    tokens = usage.get("completion_tokens", 0)
    rate = (tokens - 1) / (end - first) if tokens > 1 and end > first else 0.0
    say(f"{usage.get('prompt_tokens', 0)} prompt tokens, first token after {first - begin:.2f} s; "
        f"{tokens} tokens at {rate:.1f} tokens/s")


def wait_for_interrupt(gateway, stack: Stack):
    body = json.dumps({"model": "atelier-demo", "messages": [{"role": "user", "content": "Name three rivers."}],
                       "max_tokens": 60})
    say("all of it keeps running. Try:")
    print(f"    curl -s {gateway.url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'")
    print(f"    logs: {stack.run_dir}\n    Ctrl-C stops everything.", flush=True)
    while True:
        for process in stack.processes:
            if process.popen.poll() is not None:
                raise process.failure(f"ended with status {process.popen.returncode}")
        time.sleep(0.5)


def interrupted(*_):
    raise KeyboardInterrupt


def main() -> int:
    arguments = parse_arguments()
    if arguments.check_arguments:
        return 0
    signal.signal(signal.SIGTERM, interrupted)
    with tempfile.TemporaryDirectory(prefix="atelier-demo-") as folder, Stack(pathlib.Path(folder)) as stack:
        try:
            gateway = start(stack, arguments)
            ask(gateway, arguments)
            if arguments.keep:
                wait_for_interrupt(gateway, stack)
        except StackError as error:
            print(f"\nerror: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            say("stopping")
            return 0 if arguments.keep else 130
        say("done; every process is being stopped (--keep leaves them running, --prompt TEXT asks your own question)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
