"""Times the experts of kt-kernel (KTransformers) on random weights. Runs inside the environment that compare_peers.py makes.

Reads one JSON request from stdin: {"method", "threads", "experts", "hidden", "intermediate", "top_k", "seed"}; loads the
layer, prints {"ready": relative error against numpy}, and then answers every line {"tokens", "rounds"} with
{"us": [microseconds of each call]}. Batches take turns and route at random, so weights come from memory, not from a cache.
"""

import glob
import importlib.util
import json
import os
import sys
import time

import numpy as np

# method of ours -> (class of kt-kernel, bits per weight as it keeps them)
CLASSES = {"BF16": "AMXBF16_MOE", "INT8": "AMXInt8_MOE", "INT4": "AMXInt4_MOE"}
NUM_BATCHES = 8
MAX_TOKENS = 4096


def load_extension():
    """The variant built for the most that this CPU has."""
    with open("/proc/cpuinfo") as info:
        flags = next(line for line in info if line.startswith("flags")).split()
    order = [("amx", "amx_tile"), ("avx512_bf16", "avx512_bf16"), ("avx512_vbmi", "avx512_vbmi"),
             ("avx512_vnni", "avx512_vnni"), ("avx512_base", "avx512f"), ("avx2", "avx2")]
    folder = os.path.dirname(importlib.util.find_spec("numpy").origin) + "/../kt_kernel"
    for variant, flag in order:
        found = glob.glob(f"{folder}/_kt_kernel_ext_{variant}.*.so")
        if flag in flags and found:
            spec = importlib.util.spec_from_file_location("kt_kernel_ext", found[0])
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise SystemExit("kt-kernel: no variant for this CPU")


def to_bf16(values):
    return ((values.astype(np.float32).view(np.uint32) + 0x8000) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def random_weights(rng, experts, rows, columns):
    """[experts, rows, columns] bf16, scaled so that outputs stay near 1."""
    sample = to_bf16(rng.standard_normal((1, rows, columns), dtype=np.float32) / np.sqrt(columns))
    weights = np.empty((experts, rows, columns), dtype=np.uint16)
    for expert in range(experts):
        weights[expert] = np.roll(sample[0], 37 * expert, axis=0)
    return weights


class Layer:
    def __init__(self, extension, request):
        self.experts, self.top_k = request["experts"], request["top_k"]
        self.hidden, self.intermediate = request["hidden"], request["intermediate"]
        self.rng = np.random.default_rng(request["seed"])
        self.gate = random_weights(self.rng, self.experts, self.intermediate, self.hidden)
        self.up = random_weights(self.rng, self.experts, self.intermediate, self.hidden)
        self.down = random_weights(self.rng, self.experts, self.hidden, self.intermediate)
        pool = extension.WorkerPoolConfig()
        pool.subpool_count, pool.subpool_numa_map = 1, [0]
        pool.subpool_thread_count = [request["threads"]]
        self.infer = extension.CPUInfer(pool)
        config = extension.moe.MOEConfig(self.experts, self.top_k, self.hidden, self.intermediate, 0)
        config.pool = self.infer.backend_
        config.max_len, config.layer_idx = MAX_TOKENS, 0
        config.gate_proj, config.up_proj = self.gate.ctypes.data, self.up.ctypes.data
        config.down_proj = self.down.ctypes.data
        self.moe = getattr(extension.moe, CLASSES[request["method"]])(config)
        # Which expert of the checkpoint is held as which: one to one.
        self.order = np.arange(self.experts, dtype=np.uint64)
        self.infer.submit(self.moe.load_weights_task(self.order.ctypes.data))
        self.infer.sync()

    def batch(self, tokens):
        rows = to_bf16(self.rng.standard_normal((tokens, self.hidden), dtype=np.float32))
        ids = np.argsort(self.rng.random((tokens, self.experts)), axis=1)[:, : self.top_k]
        weights = np.full((tokens, self.top_k), 1.0 / self.top_k, dtype=np.float32)
        return {"count": np.array([tokens], dtype=np.int32), "rows": rows,
                "ids": np.ascontiguousarray(ids, dtype=np.int64), "weights": weights,
                "out": np.zeros((tokens, self.hidden), dtype=np.uint16)}

    def run(self, batch):
        start = time.perf_counter()
        self.infer.submit(self.moe.forward_task(
            batch["count"].ctypes.data, self.top_k, batch["ids"].ctypes.data,
            batch["weights"].ctypes.data, batch["rows"].ctypes.data, batch["out"].ctypes.data, False))
        self.infer.sync()
        return (time.perf_counter() - start) * 1e6

    def relative_error(self):
        """Of one token, against numpy in fp32: that the peer is called rightly."""
        batch = self.batch(1)
        self.run(batch)
        x = from_bf16(batch["rows"][0])
        expected = np.zeros(self.hidden, dtype=np.float32)
        for expert in batch["ids"][0]:
            gate = from_bf16(self.gate[expert]) @ x
            up = from_bf16(self.up[expert]) @ x
            expected += from_bf16(self.down[expert]) @ (gate / (1 + np.exp(-gate)) * up) / self.top_k
        off = from_bf16(batch["out"][0]) - expected
        return float(np.linalg.norm(off) / np.linalg.norm(expected))


def main():
    # What the library prints itself goes to stderr: stdout is for the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    layer = Layer(load_extension(), json.loads(sys.stdin.readline()))
    print(json.dumps({"ready": layer.relative_error()}), file=answers, flush=True)
    batches = {}
    for line in sys.stdin:
        ask = json.loads(line)
        if ask["tokens"] not in batches:
            batches[ask["tokens"]] = [layer.batch(ask["tokens"]) for _ in range(NUM_BATCHES)]
        turns = batches[ask["tokens"]]
        times = [layer.run(turns[i % NUM_BATCHES]) for i in range(ask["rounds"])]
        print(json.dumps({"us": times}), file=answers, flush=True)


if __name__ == "__main__":
    main()
