"""Starts and stops the processes of one Atelier installation on loopback: workers, frontend, gateway.

Used by scripts/demo and by the end-to-end tests; standard library only. Every process gets its own log file, dies with this one
(also when this one is killed), and is stopped by Stack.stop() or by leaving the `with` block.
"""
import contextlib
import ctypes
import os
import pathlib
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

REPO = pathlib.Path(__file__).resolve().parent.parent
LOOPBACK = "127.0.0.1"
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class StackError(Exception):
    """A process did not start, died, or did not become ready; the message ends with the tail of its log."""


def free_port() -> int:
    """A TCP port that was free a moment ago, for programs that cannot pick one themselves (the gateway)."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return probe.getsockname()[1]


def http_status(url: str, timeout: float = 2.0) -> int:
    """The status of a GET, or 0 where nothing answers."""
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def _die_with_parent():
    os.setsid()
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """One running program with its log."""

    def __init__(self, name: str, command: list, log: pathlib.Path, environment: dict | None = None):
        self.name = name
        self.command = [str(part) for part in command]
        self.log_path = log
        self._log = open(log, "ab")
        self.popen = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT,
                                      env={**os.environ, **(environment or {})}, preexec_fn=_die_with_parent)

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def failure(self, what: str) -> StackError:
        tail = "\n".join(f"    {line}" for line in self.log().splitlines()[-25:])
        return StackError(f"{self.name} {what}\n  command: {' '.join(self.command)}\n  log {self.log_path}:\n{tail}")

    def wait_until(self, ready, timeout: float, what: str):
        """Polls `ready` until it returns something true, and returns that; fails early if the process ends."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            result = ready()
            if result:
                return result
            if self.popen.poll() is not None:
                raise self.failure(f"ended with status {self.popen.returncode} before it was {what}")
            time.sleep(0.02)
        raise self.failure(f"was not {what} within {timeout:.0f} s")

    def kill(self, sig: int = signal.SIGKILL):
        if self.popen.poll() is None:
            os.kill(self.popen.pid, sig)

    def stop(self, grace: float = 10.0) -> int:
        """SIGTERM, then SIGKILL after `grace` seconds; the exit status."""
        self.kill(signal.SIGTERM)
        try:
            self.popen.wait(grace)
        except subprocess.TimeoutExpired:
            self.kill()
        status = self.popen.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)  # helpers that the program started in its session
        self._log.close()
        return status


def read_ready_file(path: pathlib.Path) -> dict:
    """The key=value lines that a service writes (by rename) once it serves; {} before that."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return dict(line.split("=", 1) for line in lines if "=" in line)


class Service(Process):
    """A worker or a frontend: a process that says through its ready file where it listens."""

    def __init__(self, name: str, command: list, run_dir: pathlib.Path, environment: dict | None = None):
        self.ready_path = run_dir / f"{name}.ready"
        self.ready_path.unlink(missing_ok=True)
        super().__init__(name, command + [f"--ready-file={self.ready_path}"], run_dir / f"{name}.log", environment)

    def wait_ready(self, timeout: float = 120.0) -> dict:
        return self.wait_until(lambda: read_ready_file(self.ready_path), timeout, "serving")


class Gateway(Process):
    """The unmodified Shepherd Model Gateway in front of one frontend."""

    def __init__(self, smg: pathlib.Path, frontend_address: str, log: pathlib.Path, extra: tuple = ()):
        self.port = free_port()
        metrics_port = free_port()
        self.url = f"http://{LOOPBACK}:{self.port}"
        command = [smg, "launch", "--host", LOOPBACK, "--port", self.port, "--prometheus-host", LOOPBACK,
                   "--prometheus-port", metrics_port, "--worker-urls", f"grpc://{frontend_address}", "--policy",
                   "round_robin", "--log-level", "warn", "--worker-startup-check-interval", "1",
                   "--health-check-interval-secs", "2", "--shutdown-grace-period-secs", "1", *extra]
        # Without a model hub a look-up there must fail at once, not hang: the tokenizer comes from the frontend.
        super().__init__("gateway", command, log, {"HF_ENDPOINT": f"http://{LOOPBACK}:9"})

    def wait_ready(self, timeout: float = 60.0):
        self.wait_until(lambda: http_status(f"{self.url}/readiness") == 200, timeout, "ready")


class Stack:
    """The processes of one installation; a context manager that stops them in reverse order of their start."""

    def __init__(self, run_dir: pathlib.Path, build: pathlib.Path = REPO / "build" / "release"):
        self.run_dir = pathlib.Path(run_dir)
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self.bin = build / "bin"
        self.processes: list[Process] = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def _add(self, process: Process):
        self.processes.append(process)
        return process

    def start_worker(self, name: str, model: pathlib.Path, listen: str, *flags: str) -> Service:
        command = [self.bin / "expert-worker", f"--model-path={model}", f"--listen={listen}",
                   f"--metrics-address={LOOPBACK}:0", *flags]
        return self._add(Service(name, command, self.run_dir))

    def start_frontend(self, model: pathlib.Path, workers: list, *flags: str, name: str = "frontend") -> Service:
        command = [self.bin / "gpu-frontend", f"--model-path={model}", f"--workers={','.join(workers)}",
                   f"--host={LOOPBACK}", "--port=0", f"--metrics-address={LOOPBACK}:0", *flags]
        return self._add(Service(name, command, self.run_dir))

    def start_gateway(self, smg: pathlib.Path, frontend_address: str, extra: tuple = ()) -> Gateway:
        return self._add(Gateway(smg, frontend_address, self.run_dir / "gateway.log", extra))

    def stop(self):
        for process in reversed(self.processes):
            process.stop()
        self.processes.clear()
