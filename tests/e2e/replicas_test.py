"""Two workers hold each half of the experts: killing, freezing or restarting any of them is not seen by those who ask."""
import concurrent.futures
import signal
import threading
import time

import openai
import pytest
from conftest import HALVES, Front
from failure_test import wait_for

COMPLETIONS = "/v1/completions"
STORY = {"model": "demo", "prompt": "Once upon a time", "temperature": 0, "max_tokens": 48, "ignore_eos": True}


@pytest.fixture
def replicated(install, smg):
    """Slice 0 over TCP and shared memory, slice 1 over a Unix socket and shared memory."""
    installation = install(shards=HALVES * 2, sharing=(2, 3), flags=("--disable-prefix-cache",))
    front = Front(installation, smg("gateway"))
    await_replicas(installation, 4)
    return front


def await_replicas(installation, count: int):
    names = [f'atelier_frontend_worker_connected{{worker="{address}"}}' for address in installation.worker_addresses]
    wait_for(lambda: sum(installation.metric(name) for name in names) == count, f"{count} connected workers")


def restart(installation, index: int):
    installation.workers[index] = installation.start_worker(index)
    installation.workers[index].wait_ready()
    await_replicas(installation, 4)


def story(front: Front, disturb=None) -> tuple:
    """(text, longest gap between two tokens in seconds) of a stream that is disturbed after some tokens."""
    stream = openai.Stream(front.url, COMPLETIONS, STORY)
    assert stream.status == 200
    events, times = [], []
    for event in stream:
        events.append(event)
        times.append(time.monotonic())
        if disturb is not None and len(events) == 8:
            disturb()
    answer = openai.Answer(events)
    assert answer.error is None, answer.error
    assert answer.finish_reasons == ["length"]
    return answer.text, max(b - a for a, b in zip(times, times[1:]))


def total(installation, what: str) -> float:
    return sum(installation.metric(f'atelier_frontend_worker_{what}_total{{worker="{address}"}}')
               for address in installation.worker_addresses)


def test_killed_replicas_lose_and_change_no_token(replicated):
    installation = replicated.installation
    undisturbed, usual_gap = story(replicated)
    for index in range(4):
        text, gap = story(replicated, installation.workers[index].kill)
        print(f"worker {index} killed: longest gap {gap * 1000:.0f} ms (undisturbed {usual_gap * 1000:.0f} ms)")
        assert text == undisturbed
        assert installation.workers[index].popen.wait(10) == -signal.SIGKILL
        assert story(replicated)[0] == undisturbed  # while it is dead
        restart(installation, index)
        assert story(replicated)[0] == undisturbed
    assert total(installation, "failovers") >= 1
    assert total(installation, "reconnects") == 4


def test_a_frozen_replica_loses_and_changes_no_token(replicated):
    installation = replicated.installation
    undisturbed, usual_gap = story(replicated)
    for index in range(4):
        frozen = installation.workers[index]
        text, gap = story(replicated, lambda: frozen.kill(signal.SIGSTOP))
        print(f"worker {index} frozen: longest gap {gap * 1000:.0f} ms (undisturbed {usual_gap * 1000:.0f} ms)")
        assert text == undisturbed
        frozen.kill(signal.SIGCONT)
        assert story(replicated)[0] == undisturbed
        await_replicas(installation, 4)
    assert total(installation, "hedges") >= 1


def test_both_replicas_of_a_shard_gone_is_an_error_that_ends_with_their_return(replicated):
    installation = replicated.installation
    for index in (0, 2):
        installation.workers[index].kill()
        installation.workers[index].popen.wait(10)
    status, answer = openai.post(replicated.url, COMPLETIONS, {**STORY, "max_tokens": 4})
    assert status == 503, answer
    assert installation.frontend.popen.poll() is None
    for index in (0, 2):
        installation.workers[index] = installation.start_worker(index)
        installation.workers[index].wait_ready()
    await_replicas(installation, 4)
    assert openai.post(replicated.url, COMPLETIONS, {**STORY, "max_tokens": 4})[0] == 200


def test_a_rolling_restart_under_load_loses_and_changes_no_token(replicated):
    installation = replicated.installation
    undisturbed, _ = story(replicated)
    over = threading.Event()

    def ask() -> list:
        texts = []
        while not over.is_set():
            texts.append(story(replicated)[0])
        return texts

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        askers = [pool.submit(ask) for _ in range(2)]
        try:
            for index in range(4):
                installation.workers[index].kill(signal.SIGTERM)
                assert installation.workers[index].popen.wait(30) == 0
                # As an orchestrator does: on to the next one when this one says that it is ready.
                installation.workers[index] = installation.start_worker(index)
                installation.workers[index].wait_ready()
        finally:
            over.set()
        texts = [text for asker in askers for text in asker.result()]
    print(f"rolling restart: {len(texts)} texts meanwhile")
    assert texts and set(texts) == {undisturbed}
