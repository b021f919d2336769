"""However the experts are spread over workers, the model says what the reference says wherever that is decisive."""
import json
import re

import openai
import pytest
from conftest import REPO, Front

ANSWERS = json.loads((REPO / "tests" / "golden" / "data" / "demo_model.json").read_text())["answers"]
SHORT_ANSWERS = [answer for answer in ANSWERS if len(answer["tokens"]) < 20]
DECISIVE = 0.5  # as in tests/golden/demo_model_test.cc, which says why

PLACEMENTS = {
    "one worker": ("--shard-slice=0/1",),
    "three uneven slices": ("--shard-slice=0/3", "--shard-slice=1/3", "--shard-slice=2/3"),
    "5 and 11 experts": ("--experts=0-4", "--experts=5-15"),
}


def next_token(front: Front, tokens: list) -> int:
    status, answer = openai.post(front.url, "/generate", {
        "model": "demo", "input_ids": tokens, "sampling_params": {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True}})
    assert status == 200, answer
    (token,) = answer[0]["output_ids"]
    return token


@pytest.mark.parametrize("shards", PLACEMENTS.values(), ids=[re.sub(r"\W+", "-", name) for name in PLACEMENTS])
def test_placement_chooses_the_references_tokens(install, smg, shards):
    installation = install(shards=shards, flags=("--disable-prefix-cache",))
    front = Front(installation, smg("gateway"))
    equal = positions = 0
    for answer in SHORT_ANSWERS:
        for at, (token, margin) in enumerate(zip(answer["tokens"], answer["margin"])):
            said = next_token(front, answer["prompt"] + answer["tokens"][:at])
            positions += 1
            equal += said == token
            assert said == token or margin < DECISIVE, f'{answer["question"]} token {at}: {said}, reference {token} by {margin}'
    print(f"{len(shards)} workers: {equal} of {positions} tokens are the reference's")
    assert equal >= 0.9 * positions
    assert all(installation.worker_rows(index) > 0 for index in range(len(shards)))
