"""How the frontend starts, and how it says that it cannot."""
import shutil
import subprocess
import time
import urllib.error
import urllib.request

import openai
import pytest
from atelier_stack import LOOPBACK, free_port, http_status


def run(build_dir, *flags: str, timeout: float = 60.0):
    return subprocess.run([build_dir / "bin" / "gpu-frontend", *flags], capture_output=True, text=True, timeout=timeout)


def http_text(url: str) -> str:
    """The body of a GET, whatever the status; "" where nothing answers."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return response.read().decode()
    except urllib.error.HTTPError as error:
        return error.read().decode()
    except OSError:
        return ""


REQUIRED = ("--model-path=/nowhere", "--workers=127.0.0.1:1")


@pytest.mark.parametrize("flags, message", [
    ((), "--model-path is required"),
    (("--model-path=/m",), "--workers is required"),
    ((*REQUIRED, "--port=99999"), "--port=99999"),
    ((*REQUIRED, "--host=0.0.0.0"), "--insecure"),
    ((*REQUIRED, "--device=cuda"), "--device=cuda: not built yet"),
    ((*REQUIRED, "--cpu-isa=mmx"), "must be one of auto, scalar"),
    ((*REQUIRED, "--kv-cache-bytes=lots"), "--kv-cache-bytes=lots"),
    ((*REQUIRED, "--worker-timeout=10"), "--worker-timeout=10"),
    ((*REQUIRED, "--metrics-address=x"), "--metrics-address"),
    ((*REQUIRED, "--modelpath=/m"), "did you mean --model-path"),
    ((*REQUIRED, "extra"), "extra"),
    ((*REQUIRED, "--help=flags"), "--help takes no value"),
    ((*REQUIRED, "--port=1", "--port=2"), "--port=2: given before as 1"),
    ((*REQUIRED, "--ready-file=/nowhere/ready"), "--ready-file=/nowhere/ready: cannot be written"),
])
def test_bad_flags_exit_with_status_2_and_a_message(build_dir, flags, message):
    done = run(build_dir, *flags)
    assert done.returncode == 2, done
    assert message in done.stderr


def test_help_and_version(build_dir):
    done = run(build_dir, "--help")
    assert done.returncode == 0 and "--chunked-prefill-size" in done.stdout and "smg launch" in done.stdout
    assert run(build_dir, "-h").stdout == done.stdout
    assert "cuda" not in done.stdout
    done = run(build_dir, "--version")
    assert done.returncode == 0 and done.stdout.startswith("gpu-frontend ")


def start_and_fail(build_dir, *flags: str) -> str:
    done = run(build_dir, "--port=0", f"--metrics-address={LOOPBACK}:0", *flags)
    assert done.returncode == 1, done
    return done.stderr


def test_missing_model_is_named(build_dir):
    assert "/nowhere" in start_and_fail(build_dir, *REQUIRED)


@pytest.mark.parametrize("flag", ["--threads=4096", "--context-length=9999999", "--context-length=8000 --kv-cache-bytes=1MiB"])
def test_a_value_that_only_machine_or_model_can_judge_exits_with_status_2(build_dir, shared, model, flag):
    done = run(build_dir, "--port=0", f"--metrics-address={LOOPBACK}:0", f"--model-path={model}",
               f"--workers={','.join(shared.listen)}", *flag.split())
    assert done.returncode == 2, done
    assert flag.split()[0] in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("flag", ["--context-length=9999999", "--kv-cache-bytes=1", "--kv-cache-bytes=16384TiB",
                                  "--tokenizer-path=/nowhere"])
def test_such_a_value_is_refused_before_the_workers_are_waited_for(build_dir, model, flag):
    done = run(build_dir, "--port=0", f"--metrics-address={LOOPBACK}:0", f"--model-path={model}",
               f"--workers={LOOPBACK}:{free_port()}", flag)
    assert done.returncode == 2, done
    assert flag.split("=")[0] in done.stderr.splitlines()[-1]
    assert "waiting_for_workers" not in done.stderr


def test_missing_shard_is_named(build_dir, model, tmp_path):
    broken = tmp_path / "model"
    shutil.copytree(model, broken, copy_function=lambda source, target: __import__("os").symlink(source, target))
    (broken / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors" in start_and_fail(build_dir, f"--model-path={broken}", REQUIRED[1])


def test_absent_workers_are_named_while_waiting_and_at_the_end(build_dir, model):
    address = f"{LOOPBACK}:{free_port()}"
    text = start_and_fail(build_dir, f"--model-path={model}", f"--workers={address}", "--connect-timeout=1s")
    assert address in text


def test_readyz_names_what_is_waited_for(build_dir, model, tmp_path, shared):
    address = f"{LOOPBACK}:{free_port()}"
    metrics = f"{LOOPBACK}:{free_port()}"
    log = open(tmp_path / "log", "wb")
    frontend = subprocess.Popen([build_dir / "bin" / "gpu-frontend", f"--model-path={model}", f"--workers={shared.listen[0]},{address}",
                                 "--port=0", f"--metrics-address={metrics}"], stderr=log)
    try:
        deadline = time.monotonic() + 30
        text = ""
        while "slice 1/2" not in text and time.monotonic() < deadline:
            text = http_text(f"http://{metrics}/readyz")
            time.sleep(0.05)
        assert address in text and "no worker holds slice 1/2" in text, text
    finally:
        frontend.terminate()
    assert frontend.wait(10) == 0


def test_half_of_the_experts_is_not_enough(build_dir, shared, model):
    text = start_and_fail(build_dir, f"--model-path={model}", f"--workers={shared.listen[0]}", "--connect-timeout=2s")
    assert "1/2" in text or "slice" in text, text


def test_port_in_use_is_named_before_anything_is_loaded(build_dir, shared, model):
    port = shared.address.rsplit(":", 1)[1]
    done = run(build_dir, f"--model-path={model}", f"--workers={shared.listen[0]}", f"--port={port}",
               f"--metrics-address={LOOPBACK}:0")
    assert done.returncode == 1 and shared.address in done.stderr


def test_gateway_without_the_files_fetches_the_tokenizer(shared, model, smg, build_dir):
    frontend = shared.stack.start_frontend(model, shared.listen, "--served-model-name=remote", "--advertised-path=/",
                                           name="frontend-remote")
    gateway = shared.stack.start_gateway(smg("gateway"), frontend.wait_ready()["listen"])
    gateway.wait_ready()
    status, answer = openai.post(gateway.url, "/v1/chat/completions", {
        "model": "remote", "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0, "max_tokens": 12})
    assert status == 200, answer
    assert "Paris" in answer["choices"][0]["message"]["content"]
    for process in (gateway, frontend):
        process.stop()
        shared.stack.processes.remove(process)


def test_observability_endpoints(shared):
    assert http_status(f"{shared.metrics_url}/healthz") == 200
    assert http_status(f"{shared.metrics_url}/readyz") == 200
    with urllib.request.urlopen(f"{shared.metrics_url}/metrics", timeout=10) as response:
        text = response.read().decode()
    for name in ("kv_cache_usage_ratio", "time_to_first_token_seconds", "inter_token_latency_seconds", "queue"):
        assert f"\natelier_frontend_{name}" in text, name
