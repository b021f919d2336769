"""scripts/demo itself, as a newcomer types it. It builds build/release and uses .venv/gateway, which scripts/test made."""
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest
from conftest import REPO

DEMO = REPO / "scripts" / "demo"


@pytest.fixture
def demo(build_dir):
    """The script's path; it works only on the repository's own build."""
    if build_dir.resolve() != (REPO / "build" / "release").resolve() or not (REPO / ".venv" / "gateway").exists():
        pytest.skip(f"{DEMO} would install and build here what the tests got elsewhere ({build_dir})")
    return DEMO


def run_dir_of(text: str) -> str:
    return re.search(r"worker-1: unix:(/\S+)/worker-1\.sock", text).group(1)


def processes_with(needle: str) -> list:
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and needle in (entry / "cmdline").read_text():
                found.append(entry.name)
        except OSError:
            continue  # it ended meanwhile
    return found


def test_answers_and_leaves_nothing_behind(demo):
    done = subprocess.run([demo, "--prompt", "Who wrote Romeo and Juliet?", "--max-tokens", "30"], capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Shakespeare" in re.search(r"answer: (.*)", done.stdout).group(1)
    assert re.search(r"\d+ tokens at \d+\.\d tokens/s", done.stdout)
    assert len(re.findall(r"metrics http://127\.0\.0\.1:\d+/metrics", done.stdout)) == 3
    run_dir = run_dir_of(done.stdout)
    assert not os.path.exists(run_dir)
    assert processes_with(run_dir) == []


def test_keep_prints_a_curl_line_that_works_and_ctrl_c_stops_everything(demo, tmp_path):
    log = tmp_path / "log"
    with open(log, "wb") as output:
        process = subprocess.Popen([demo, "--keep", "--max-tokens", "8"], stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + 300
        while "Ctrl-C stops everything" not in log.read_text():
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        text = log.read_text()
        curl = re.search(r"^ *(curl .*)$", text, re.MULTILINE).group(1)
        answer = subprocess.run(curl, shell=True, capture_output=True, text=True, timeout=60)
        assert '"choices"' in answer.stdout, answer
        assert processes_with(run_dir_of(text))
    finally:
        process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    assert processes_with(run_dir_of(text)) == []


@pytest.mark.parametrize("arguments, message", [
    (("--max-tokens", "0"), "--max-tokens=0"),
    (("--temperature", "9"), "--temperature=9"),
    (("--method", "int3"), "int3"),
    (("--gguf", "Q9_9"), "Q9_9"),
    (("--propmt", "x"), "--propmt"),
])
def test_bad_arguments_end_with_status_2_before_anything_is_built(arguments, message):
    done = subprocess.run([DEMO, *arguments], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2, done
    assert message in done.stderr


def test_help_teaches():
    done = subprocess.run([DEMO, "--help"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0
    for flag in ("--prompt", "--keep", "--method", "--gguf", "--max-tokens", "--temperature"):
        assert flag in done.stdout
