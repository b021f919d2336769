"""Compares the expert FFN of expert-worker with that of a peer, alternating, on this machine: see --help."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
OURS = REPO / "build/release/bin/bench_expert_ffn"
PEER_PACKAGES = ["kt-kernel==0.7.2", "numpy==2.3.5"]
# Method of ours -> the peer's of as many bits per weight.
PEER_METHODS = {"BF16": "BF16", "INT8": "INT8", "INT4_G128": "INT4"}
TURN_US = 400_000  # of a peer's calls


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        prog="scripts/bench compare_peers",
        description="Times one MoE layer (random weights and routing, fp32 sums in bf16 out) through our executor and through "
        "KTransformers' kt-kernel 0.7.2, taking turns, and prints the ratio of the medians (above 1: ours is faster). kt-kernel "
        "comes from PyPI into a throw-away environment; its results are checked against numpy first.",
        epilog="example: scripts/bench compare_peers --methods BF16,INT8 --tokens 1,64,1024 --json /tmp/peers.json",
    )
    parser.add_argument("--methods", default="BF16,INT8,INT4_G128", help="of: %s (default: all)" % ", ".join(PEER_METHODS))
    parser.add_argument("--tokens", default="1,2,16,64,1024", help="tokens in a batch (default: %(default)s)")
    parser.add_argument("--threads", default="1", help="compute threads of both (default: 1: kt-kernel's waiting thread spins, so "
                        "that with as many threads as cores its figures are those of the scheduler)")
    parser.add_argument("--shape", default="128x2048x768x8", help="EXPERTSxHIDDENxINTERMEDIATExTOP_K (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="how often each takes its turn (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    options = parser.parse_args(arguments)
    options.methods = options.methods.split(",")
    for method in options.methods:
        if method not in PEER_METHODS:
            parser.error(f"--methods={method}: must be of {', '.join(PEER_METHODS)}")
    for name in ("tokens", "threads"):
        try:
            values = [int(text) for text in getattr(options, name).split(",")]
        except ValueError:
            values = []
        if not values or min(values) < 1 or max(values) > 4096:
            parser.error(f"--{name}={getattr(options, name)}: must be whole numbers from 1 to 4096")
        setattr(options, name, values)
    try:
        options.experts, options.hidden, options.intermediate, options.top_k = map(int, options.shape.split("x"))
    except ValueError:
        parser.error(f"--shape={options.shape}: must be EXPERTSxHIDDENxINTERMEDIATExTOP_K, e.g. 128x2048x768x8")
    if options.turns < 1:
        parser.error(f"--turns={options.turns}: must be at least 1")
    return options


def make_environment(folder):
    print("installing " + " ".join(PEER_PACKAGES), file=sys.stderr)
    python = folder / "venv/bin/python"
    for command in ([sys.executable, "-m", "venv", str(folder / "venv")],
                    [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", *PEER_PACKAGES]):
        if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode != 0:
            raise SystemExit(f"error: {' '.join(command)} failed: no network to PyPI?")
    return python


class Peer:
    """kt-kernel in a process of its own, with one layer loaded."""

    def __init__(self, python, method, threads, options):
        self.process = subprocess.Popen(
            [str(python), str(REPO / "bench/peers/kt_kernel.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True)
        self.rounds = {}
        answer = self.ask({"method": PEER_METHODS[method], "threads": threads, "experts": options.experts,
                           "hidden": options.hidden, "intermediate": options.intermediate, "top_k": options.top_k, "seed": 1})
        self.relative_error = answer["ready"]

    def ask(self, request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("error: kt-kernel ended:\n" + self.process.stderr.read()[-2000:])
        return json.loads(line)

    def microseconds(self, tokens):
        """Of one turn's calls; the first turn finds out how many fit."""
        if tokens not in self.rounds:
            once = self.ask({"tokens": tokens, "rounds": 1})["us"][0]
            self.rounds[tokens] = max(3, min(100, int(TURN_US / once)))
        return self.ask({"tokens": tokens, "rounds": self.rounds[tokens]})["us"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def our_turn(method, threads, options, folder):
    """Tokens -> the result of bench/expert_ffn."""
    out = folder / "ours.json"
    command = [str(OURS), f"--method={method}", "--isa=best", f"--threads={threads}", f"--shape={options.shape}",
               "--routing=balanced", "--rows=" + ",".join(map(str, options.tokens)), f"--json={out}"]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"error: {' '.join(command)} failed:\n{done.stderr[-2000:]}")
    report = json.loads(out.read_text())
    return report["machine"], {result["rows"]: result for result in report["results"]}


def compare(method, threads, options, python, folder):
    peer = Peer(python, method, threads, options)
    ours, theirs, machine = {}, {}, None
    for _ in range(options.turns):
        machine, results = our_turn(method, threads, options, folder)
        for tokens in options.tokens:
            ours.setdefault(tokens, []).append(results[tokens])
            theirs.setdefault(tokens, []).extend(peer.microseconds(tokens))
    peer.close()
    rows = []
    for tokens in options.tokens:
        mine = sorted(ours[tokens], key=lambda result: result["us"])[len(ours[tokens]) // 2]
        them = statistics.median(theirs[tokens])
        rows.append({**mine, "peer": "kt-kernel " + PEER_METHODS[method], "peer_us": them, "ratio": them / mine["us"],
                     "peer_relative_error": peer.relative_error})
        print(f"{method:10} {threads:7} {tokens:6} {mine['us']:12.0f} {them:12.0f} {them / mine['us']:7.2f}"
              f"   (the peer's result is off by {100 * peer.relative_error:.1f} % of its norm)", flush=True)
    return machine, rows


def main():
    options = parse_arguments(sys.argv[1:])
    machine, results = None, []
    with tempfile.TemporaryDirectory(prefix="compare_peers.") as name:
        folder = Path(name)
        python = make_environment(folder)
        print(f"shape {options.shape}, load {os.getloadavg()[0]:.1f}, medians of {options.turns} turns each")
        print(f"{'method':10} {'threads':>7} {'tokens':>6} {'ours us':>12} {'peer us':>12} {'ratio':>7}")
        for method in options.methods:
            for threads in options.threads:
                machine, rows = compare(method, threads, options, python, folder)
                results += rows
    if options.json:
        Path(options.json).write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
