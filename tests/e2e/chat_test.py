"""The OpenAI API through the real gateway, newest and oldest supported: what users see."""
import concurrent.futures

import openai

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"model": "demo", "messages": QUESTION, "temperature": 0, "max_tokens": 24}
PROMPT = {"model": "demo", "prompt": "The capital of France is", "temperature": 0, "max_tokens": 12}


def ask(front, path: str, body: dict) -> dict:
    status, answer = openai.post(front.url, path, body)
    assert status == 200, answer
    return answer


def refused(front, path: str, body: dict, status: int = 400) -> str:
    seen, answer = openai.post(front.url, path, body)
    assert seen == status, answer
    return answer["error"]["message"]


def test_model_is_listed_under_its_served_name(front):
    import json
    import urllib.request
    with urllib.request.urlopen(f"{front.url}/v1/models", timeout=10) as response:
        assert "demo" in [model["id"] for model in json.loads(response.read())["data"]]


def test_chat_answers_sensibly(front):
    answer = ask(front, CHAT, GREEDY)
    assert "Paris" in answer["choices"][0]["message"]["content"]
    usage = answer["usage"]
    assert usage["prompt_tokens"] > 10
    assert 0 < usage["completion_tokens"] <= 24


def test_streamed_chat_says_the_same_as_unary(front):
    whole = ask(front, CHAT, GREEDY)
    streamed = openai.stream(front.url, CHAT, {**GREEDY, "stream_options": {"include_usage": True}})
    assert streamed.error is None
    assert streamed.text == whole["choices"][0]["message"]["content"]
    assert streamed.finish_reasons == [whole["choices"][0]["finish_reason"]]
    assert streamed.usage["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert streamed.usage["prompt_tokens"] == whole["usage"]["prompt_tokens"]


def test_answer_ends_at_the_end_of_sequence(front):
    answer = ask(front, CHAT, {**GREEDY, "max_tokens": 200})
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert "<|im_end|>" not in answer["choices"][0]["message"]["content"]


def test_completions_unary_and_streamed(front):
    whole = ask(front, COMPLETIONS, PROMPT)["choices"][0]
    streamed = openai.stream(front.url, COMPLETIONS, PROMPT)
    assert "Paris" in whole["text"]
    assert streamed.text == whole["text"]
    assert whole["finish_reason"] == "length"
    assert streamed.finish_reasons == ["length"]


def test_length_limit_is_kept(front):
    answer = ask(front, CHAT, {**GREEDY, "max_tokens": 3})
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 3


def test_two_choices(front):
    answer = ask(front, CHAT, {**GREEDY, "n": 2, "max_tokens": 8})
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    first, second = (choice["message"]["content"] for choice in answer["choices"])
    assert first == second and first
    assert answer["usage"]["completion_tokens"] == 16


def test_two_streamed_choices_keep_apart(front):
    alone = openai.stream(front.url, CHAT, {**GREEDY, "max_tokens": 8}).text
    events = openai.Stream(front.url, CHAT, {**GREEDY, "n": 2, "max_tokens": 8})
    texts, finishes = {0: "", 1: ""}, []
    for event in events:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["delta"].get("content") or ""
            if choice.get("finish_reason"):
                finishes.append(choice["index"])
    assert texts == {0: alone, 1: alone}
    assert sorted(finishes) == [0, 1]


def test_logprobs_unary_and_streamed(front):
    body = {**GREEDY, "max_tokens": 6, "logprobs": True, "top_logprobs": 3}
    whole = ask(front, CHAT, body)["choices"][0]
    entries = whole["logprobs"]["content"]
    assert len(entries) == 6
    for entry in entries:
        assert entry["logprob"] <= 0
        # Greedy: the chosen token is the likeliest.
        assert entry["top_logprobs"][0]["token"] == entry["token"]
        assert len(entry["top_logprobs"]) == 3
    assert "".join(entry["token"] for entry in entries).strip() == whole["message"]["content"].strip()
    streamed = openai.stream(front.url, CHAT, body)
    assert [entry["token"] for entry in streamed.logprobs] == [entry["token"] for entry in entries]


def test_prompt_logprobs(front):
    status, answer = openai.post(front.url, "/generate", {
        "model": "demo", "text": "The capital of France", "return_logprob": True, "logprob_start_len": 0,
        "sampling_params": {"max_new_tokens": 1, "temperature": 0}})
    assert status == 200, answer
    values = [entry[0] for entry in answer[0]["meta_info"]["input_token_logprobs"]]
    assert values[0] is None and all(value <= 0 for value in values[1:])
    assert len(values) == answer[0]["meta_info"]["prompt_tokens"]


def test_stop_string_cuts_the_text(front):
    whole = ask(front, CHAT, GREEDY)["choices"][0]["message"]["content"]
    word = whole.split()[3]
    cut = ask(front, CHAT, {**GREEDY, "stop": [word]})["choices"][0]
    assert cut["message"]["content"] == whole[:whole.index(word)] or \
        cut["message"]["content"].rstrip() == whole[:whole.index(word)].rstrip()
    assert cut["finish_reason"] == "stop"


def test_stop_string_of_several_tokens(front):
    whole = ask(front, CHAT, GREEDY)["choices"][0]["message"]["content"]
    phrase = " ".join(whole.split()[2:5])
    cut = ask(front, CHAT, {**GREEDY, "stop": [phrase]})["choices"][0]
    assert phrase not in (cut["message"]["content"] or "")
    assert cut["finish_reason"] == "stop"


def test_completion_of_no_tokens(front):
    answer = ask(front, COMPLETIONS, {**PROMPT, "max_tokens": 0})
    assert answer["choices"][0]["text"] == ""
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0


def test_empty_prompt_starts_from_the_beginning_of_sequence(front):
    answer = ask(front, COMPLETIONS, {**PROMPT, "prompt": "", "max_tokens": 4})
    assert answer["usage"]["prompt_tokens"] == 1


def test_room_left_bounds_an_answer_without_limit(front):
    body = {"model": "demo", "prompt": "word " * 500, "temperature": 0, "ignore_eos": True}
    answer = ask(front, COMPLETIONS, body)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == 512


def test_prompt_beyond_the_context_is_refused(front):
    message = refused(front, COMPLETIONS, {**PROMPT, "prompt": "word " * 600})
    assert "512" in message


def test_unsupported_constraints_are_refused(front):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    assert "tool_choice" in refused(front, CHAT, {**GREEDY, "tools": tools, "tool_choice": "required"})
    assert "constrained decoding" in refused(front, CHAT, {**GREEDY, "response_format": {"type": "json_object"}})


def test_token_outside_the_vocabulary_is_refused(front):
    message = refused(front, "/generate", {"model": "demo", "input_ids": [5, 99999], "sampling_params": {}})
    assert "99999" in message


def test_parameters_out_of_range_are_refused(front):
    for bad in ({"temperature": 3}, {"top_p": 1.5}, {"min_p": 7}, {"repetition_penalty": 5}, {"n": 0}, {"max_tokens": 0}):
        refused(front, CHAT, {**GREEDY, **bad})


def test_request_id_in_use_is_a_conflict(front):
    long = openai.Stream(front.url, "/generate", {
        "model": "demo", "text": "Once upon a time", "rid": "taken",
        "sampling_params": {"max_new_tokens": 400, "temperature": 0, "ignore_eos": True}})
    next(iter(long))
    message = refused(front, "/generate", {"model": "demo", "text": "x", "rid": "taken", "sampling_params": {}}, 409)
    assert "taken" in message
    long.close()


def test_concurrent_streams_say_what_each_says_alone(front):
    subjects = ["the sea", "a dog", "Rome", "winter", "music", "the moon", "bread", "a train"]
    bodies = [{**GREEDY, "messages": [{"role": "user", "content": f"Tell me about {subject}."}], "max_tokens": 8 + 7 * i}
              for i, subject in enumerate(subjects)]
    alone = [openai.stream(front.url, CHAT, body).text for body in bodies]
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        together = list(pool.map(lambda body: openai.stream(front.url, CHAT, body), bodies))
    assert [answer.error for answer in together] == [None] * len(bodies)
    assert [answer.text for answer in together] == alone
    assert all(alone)


def test_flush_cache(front):
    status, answer = openai.post(front.url, "/flush_cache", {})
    assert status == 200 and answer["workers_flushed"] == 1
