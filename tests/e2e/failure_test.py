"""What happens when a client goes, a worker dies, or the frontend is told to stop."""
import signal
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
    gateway = installation.stack.start_gateway(smg("gateway"), installation.address)
    gateway.wait_ready()
    return Front(installation, gateway)


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


def test_disconnect_of_a_unary_request_stops_the_work(front):
    installation = front.installation
    aborted = installation.metric(ABORTED)
    generated = installation.metric(GENERATED)

    def impatient():
        with pytest.raises(TimeoutError):
            openai.post(front.url, COMPLETIONS, LONG, timeout=0.5)

    client = threading.Thread(target=impatient)
    client.start()
    client.join()
    seconds = wait_for(lambda: installation.metric(ABORTED) > aborted, "abort of a unary request")
    print(f"disconnect of a unary request: aborted after {seconds * 1000:.0f} ms")
    assert installation.metric(GENERATED) - generated < LONG["max_tokens"]


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


def test_second_signal_ends_the_drain(installation, smg):
    gateway = installation.stack.start_gateway(smg("gateway"), installation.address)
    gateway.wait_ready()
    stream = openai.Stream(gateway.url, COMPLETIONS, LONG)
    next(iter(stream))
    installation.frontend.kill(signal.SIGTERM)
    wait_for(lambda: "to=draining" in installation.frontend.log(), "draining")
    installation.frontend.kill(signal.SIGTERM)
    assert installation.frontend.popen.wait(10) == 0
