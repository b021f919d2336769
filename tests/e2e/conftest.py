"""Fixtures: one installation (two workers, frontend, both gateways) for the tests that only ask, and a builder of others for the
tests that break one. Environment: ATELIER_BUILD_DIR (default build/release), ATELIER_E2E_MODEL (build/demo-model),
ATELIER_E2E_VENVS (.venv: holds gateway/ and gateway-floor/)."""
import os
import pathlib
import subprocess
import sys
import urllib.request

import pytest

REPO = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(REPO / "tools"))

import atelier_stack  # noqa: E402  (tools/ is not a package path before the line above)

GATEWAYS = ("gateway", "gateway-floor")
CONTEXT = 512  # small, so that "too long" is cheap to reach


def path_from(variable: str, default: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(os.environ.get(variable, default))


def run_tool(name: str, *arguments):
    """Runs a Python program of tools/ in the environment of the demo model."""
    python = path_from("ATELIER_E2E_VENVS", REPO / ".venv") / "demo-model" / "bin" / "python"
    subprocess.run([python, REPO / "tools" / name, *arguments], check=True, capture_output=True)


def metric(base_url: str, name: str) -> float:
    with urllib.request.urlopen(f"{base_url}/metrics", timeout=10) as response:
        for line in response.read().decode().splitlines():
            if line.startswith(name + " "):
                return float(line.rsplit(" ", 1)[1])
    return 0.0


HALVES = ("--shard-slice=0/2", "--shard-slice=1/2")


class Installation:
    """Workers, one for each of `shards` (the first over TCP, the others over Unix sockets, or shared memory for those whose
    numbers are in `sharing`), and a frontend."""

    def __init__(self, run_dir: pathlib.Path, build: pathlib.Path, model: pathlib.Path, flags: tuple = (),
                 shards: tuple = HALVES, sharing: tuple = ()):
        self.model = model
        self.shards = shards
        self.stack = atelier_stack.Stack(run_dir, build)
        self.worker_port = atelier_stack.free_port()  # fixed, so that a worker can come back where it was
        self.listen = [f"unix:{run_dir}/worker-{index}.sock" for index in range(len(shards))]
        self.listen[0] = f"{atelier_stack.LOOPBACK}:{self.worker_port}"
        self.shm_listen = {index: f"{run_dir}/worker-{index}.shm" for index in sharing}
        self.worker_addresses = [f"shm:{self.shm_listen[index]}" if index in sharing else listen
                                 for index, listen in enumerate(self.listen)]
        self.workers = [self.start_worker(index) for index in range(len(shards))]
        self.worker_metrics_urls = [f"http://{worker.wait_ready()['metrics']}" for worker in self.workers]
        self.frontend = self.stack.start_frontend(model, self.worker_addresses, "--served-model-name=demo",
                                                  f"--context-length={CONTEXT}", *flags)
        facts = self.frontend.wait_ready()
        self.address = facts["listen"]
        self.metrics_url = f"http://{facts['metrics']}"

    def start_worker(self, index: int) -> atelier_stack.Service:
        sharing = (f"--shm-listen={self.shm_listen[index]}",) if index in self.shm_listen else ()
        return self.stack.start_worker(f"worker-{index}", self.model, self.listen[index], self.shards[index],
                                       "--threads=1", *sharing)

    def metric(self, name: str) -> float:
        """The value of one metric of the frontend; 0 where it is not there (yet). `name` includes labels."""
        return metric(self.metrics_url, name)

    def worker_rows(self, index: int = 0) -> float:
        """Rows that a worker was asked to compute, all layers together."""
        return metric(self.worker_metrics_urls[index], "atelier_worker_tokens_total")

    def logs(self) -> str:
        return "\n".join(f"--- {process.name} ({process.log_path})\n" + "\n".join(process.log().splitlines()[-40:])
                         for process in self.stack.processes)


class Front:
    """A gateway, started and ready, in front of an installation."""

    def __init__(self, installation: Installation, smg: pathlib.Path):
        self.installation = installation
        gateway = installation.stack.start_gateway(smg, installation.address)
        gateway.wait_ready()
        self.url = gateway.url


@pytest.fixture(scope="session")
def build_dir() -> pathlib.Path:
    path = path_from("ATELIER_BUILD_DIR", REPO / "build" / "release")
    for name in ("gpu-frontend", "expert-worker"):
        assert (path / "bin" / name).exists(), f"{path}/bin/{name} is missing: build it first (scripts/test does)"
    return path


@pytest.fixture(scope="session")
def model() -> pathlib.Path:
    path = path_from("ATELIER_E2E_MODEL", REPO / "build" / "demo-model")
    assert (path / "config.json").exists(), f"{path} is no model: scripts/test makes it, see tools/demo_model/README.md"
    return path


@pytest.fixture(scope="session")
def smg():
    """The command of a gateway by the name of its environment."""
    venvs = path_from("ATELIER_E2E_VENVS", REPO / ".venv")
    return lambda name: venvs / name / "bin" / "smg"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """A failed test shows the ends of the logs of every process it used."""
    outcome = yield
    report = outcome.get_result()
    if report.when == "call" and report.failed:
        for value in item.funcargs.values():
            installation = getattr(value, "installation", value)
            if isinstance(installation, Installation):
                report.sections.append(("processes", installation.logs()))
                break


@pytest.fixture(scope="session")
def shared(tmp_path_factory, build_dir, model):
    """For tests that leave everything as it was."""
    installation = Installation(tmp_path_factory.mktemp("shared"), build_dir, model)
    yield installation
    installation.stack.stop()


@pytest.fixture
def installation(tmp_path, build_dir, model):
    """One of its own, for tests that kill or stop something."""
    result = Installation(tmp_path, build_dir, model)
    yield result
    result.stack.stop()


@pytest.fixture
def install(tmp_path, build_dir, model):
    """Builds one with flags of the test's own."""
    built = []

    def build(**options) -> Installation:
        built.append(Installation(tmp_path / str(len(built)), build_dir, **{"model": model, **options}))
        return built[-1]

    yield build
    for installation in built:
        installation.stack.stop()


@pytest.fixture(scope="session", params=GATEWAYS)
def front(request, shared, smg):
    """The shared installation through each version of the gateway."""
    return Front(shared, smg(request.param))
