"""What happens when a client goes, a worker dies, or the frontend is told to stop."""
import http.client
import json
import signal
import socket
import threading
import time

import openai
import pytest
from conftest import CONTEXT, Front

CHAT = "/v1/chat/completions"
LONG = {"model": "demo", "prompt": "Once upon a time", "temperature": 0, "max_tokens": CONTEXT - 40, "ignore_eos": True}
SHORT = {"model": "demo", "prompt": "The capital of France is", "temperature": 0, "max_tokens": 4}
COMPLETIONS = "/v1/completions"
GENERATED = "atelier_frontend_generated_tokens_total"
ABORTED = 'atelier_frontend_requests_total{outcome="abort"}'


@pytest.fixture
def front_of_one(installation, smg):
    return Front(installation, smg("gateway"))


def wait_for(condition, what: str, timeout: float = 30.0) -> float:
    """Seconds until `condition` held."""
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < timeout, f"{what}: not within {timeout} s"
        time.sleep(0.005)
    return time.monotonic() - begin


def test_disconnect_while_streaming_stops_the_work(front):
    installation = front.installation
    aborted = installation.metric(ABORTED)
    stream = openai.Stream(front.url, COMPLETIONS, LONG)
    events = iter(stream)
    for _ in range(3):
        next(events)
    generated = installation.metric(GENERATED)
    stream.close()
    seconds = wait_for(lambda: installation.metric(ABORTED) > aborted, "abort of a stream")
    wasted = installation.metric(GENERATED) - generated
    print(f"disconnect while streaming: aborted after {seconds * 1000:.0f} ms and {wasted:.0f} tokens (the gateway notices when "
          "its second write to the closed socket fails)")
    assert wasted <= 16
    wait_for(lambda: installation.metric("atelier_frontend_running_requests") == 0, "an idle engine")


def long_prompt(word: str) -> dict:
    """Some 450 tokens that share no beginning with a prompt of another word."""
    return {"model": "demo", "prompt": word + " the" * 440, "temperature": 0, "max_tokens": 1}


class Prefill:
    """Sends a long prompt and goes away while it is being computed; knows what was computed after that."""

    def __init__(self, front: Front, word: str, stream: bool):
        self.installation = front.installation
        self._aborted = self.installation.metric(ABORTED)
        self._body = {**long_prompt(word), "stream": stream}
        host = front.url.removeprefix("http://")
        self._connection = http.client.HTTPConnection(host, timeout=60)
        rows = self.installation.worker_rows()
        self._connection.request("POST", COMPLETIONS, json.dumps(self._body), {"Content-Type": "application/json"})
        wait_for(lambda: self.installation.worker_rows() > rows + 200, "work for the prompt")

    def disconnect(self) -> float:
        """Seconds until the frontend had given the request up."""
        self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        return wait_for(lambda: self.installation.metric(ABORTED) > self._aborted, "abort of a prefill")


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
def test_disconnect_during_a_long_prompt_stops_the_work(front, stream):
    installation = front.installation
    # What a whole one costs: the workers' rows, and the time.
    rows, begin = installation.worker_rows(), time.monotonic()
    assert openai.post(front.url, COMPLETIONS, long_prompt(f"whole{stream}{front.url[-4:]}"))[0] == 200
    whole_rows, whole_seconds = installation.worker_rows() - rows, time.monotonic() - begin

    rows = installation.worker_rows()
    prefill = Prefill(front, f"half{stream}{front.url[-4:]}", stream)
    at_close = installation.worker_rows()
    seconds = prefill.disconnect()
    wait_for(lambda: installation.metric("atelier_frontend_running_requests") == 0, "an idle engine")
    after = installation.worker_rows() - at_close
    print(f"disconnect during a long prompt: aborted after {seconds * 1000:.0f} ms; {after / whole_rows:.0%} of the prompt's work "
          f"was done after the hang-up ({after / whole_rows * whole_seconds * 1000:.0f} ms of work), the whole takes "
          f"{whole_seconds:.2f} s")
    # 100 ms and a layer, in rows at the speed of the whole prompt; four times that for a busy machine.
    layer_rows = whole_rows / 29
    assert after <= 4 * (whole_rows * 0.1 / whole_seconds + layer_rows)
    assert installation.worker_rows() - rows < whole_rows


def test_disconnect_during_a_long_prompt_beside_a_stream_stops_the_work(front):
    installation = front.installation

    def prompt_tokens() -> float:
        """Computed so far: each step's tokens, less the one of the stream."""
        return installation.metric("atelier_frontend_step_tokens_sum") - installation.metric("atelier_frontend_step_tokens_count")

    stream = openai.Stream(front.url, COMPLETIONS, LONG)
    events = iter(stream)
    next(events)
    times = [time.monotonic()]
    seen_enough = threading.Event()

    def read():
        for _ in events:
            times.append(time.monotonic())
            if seen_enough.is_set():
                return

    reader = threading.Thread(target=read)
    reader.start()
    first, begin, from_token = prompt_tokens(), time.monotonic(), len(times)
    prefill = Prefill(front, f"beside{front.url[-4:]}", False)
    at_close, steps = prompt_tokens(), len(times) - from_token
    closed = time.monotonic()
    seconds = prefill.disconnect()
    time.sleep(0.2)  # what is computed for it now would be too much
    after = prompt_tokens() - at_close
    gaps = [b - a for a, b in zip(times, times[1:]) if begin <= b <= closed + seconds]
    chunk = (at_close - first) / max(1, steps)
    print(f"disconnect during a long prompt beside a stream: aborted after {seconds * 1000:.0f} ms; {after:.0f} prompt tokens were "
          f"computed after the hang-up, {chunk:.0f} a step; the stream waited at most {max(gaps, default=0) * 1000:.0f} ms for a token")
    seen_enough.set()
    reader.join()
    stream.close()
    assert after <= 4 * max(chunk, 16)
    assert at_close + after - first < 440


def test_disconnect_of_a_unary_request_stops_the_work(front):
    installation = front.installation
    aborted = installation.metric(ABORTED)
    before = installation.metric(GENERATED)
    connection = http.client.HTTPConnection(front.url.removeprefix("http://"), timeout=60)
    connection.request("POST", COMPLETIONS, json.dumps(LONG), {"Content-Type": "application/json"})
    wait_for(lambda: installation.metric(GENERATED) > before + 10, "an answer in the making")
    generated, closed = installation.metric(GENERATED), time.monotonic()
    connection.sock.shutdown(socket.SHUT_RDWR)
    connection.close()
    wait_for(lambda: installation.metric(ABORTED) > aborted, "abort of a unary request")
    seconds, wasted = time.monotonic() - closed, installation.metric(GENERATED) - generated
    print(f"disconnect of a unary request: aborted after {seconds * 1000:.0f} ms and {wasted:.0f} tokens")
    assert wasted <= 16


def test_killed_worker_ends_requests_and_its_return_mends_it(front_of_one):
    installation, url = front_of_one.installation, front_of_one.url
    stream = openai.Stream(url, COMPLETIONS, LONG)
    events = iter(stream)
    next(events)
    installation.workers[0].kill(signal.SIGKILL)
    killed = time.monotonic()
    rest = list(events)
    seconds = time.monotonic() - killed
    print(f"killed worker: the stream ended with an error after {seconds * 1000:.0f} ms: {rest[-1]}")
    assert "error" in rest[-1]
    assert seconds < 2
    assert installation.frontend.popen.poll() is None

    status, answer = openai.post(url, COMPLETIONS, SHORT)
    assert status == 503, answer
    from atelier_stack import http_status
    assert http_status(f"{installation.metrics_url}/readyz") == 503
    assert http_status(f"{installation.metrics_url}/healthz") == 200

    installation.start_worker(0).wait_ready()
    wait_for(lambda: http_status(f"{installation.metrics_url}/readyz") == 200, "readiness after the worker's return")
    status, answer = openai.post(url, COMPLETIONS, SHORT)
    assert status == 200, answer
    assert "Paris" in answer["choices"][0]["text"]


def test_frontend_drains_on_sigterm(front_of_one):
    installation, url = front_of_one.installation, front_of_one.url
    stream = openai.Stream(url, COMPLETIONS, {**LONG, "max_tokens": 64})
    events = iter(stream)
    got = [next(events)]
    installation.frontend.kill(signal.SIGTERM)
    wait_for(lambda: "to=draining" in installation.frontend.log(), "draining")
    status, answer = openai.post(url, COMPLETIONS, SHORT)
    assert status == 503, answer
    answer = openai.Answer(got + list(events))
    assert answer.error is None
    assert answer.finish_reasons == ["length"]
    assert installation.frontend.popen.wait(30) == 0


def test_second_signal_ends_the_drain(front_of_one):
    installation = front_of_one.installation
    stream = openai.Stream(front_of_one.url, COMPLETIONS, LONG)
    next(iter(stream))
    installation.frontend.kill(signal.SIGTERM)
    wait_for(lambda: "to=draining" in installation.frontend.log(), "draining")
    installation.frontend.kill(signal.SIGTERM)
    assert installation.frontend.popen.wait(10) == 0
