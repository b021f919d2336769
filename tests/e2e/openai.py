"""A client of the gateway's HTTP API; standard library only."""
import http.client
import json
import urllib.error
import urllib.request


# "The capital of France is Paris."
FRANCE = {"model": "demo", "temperature": 0, "max_tokens": 24,
          "messages": [{"role": "user", "content": "What is the capital of France?"}]}


def post(url: str, path: str, body: dict, timeout: float = 120.0):
    """(status, decoded answer) of a POST, whatever the status."""
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"null")


class Stream:
    """A streaming request: iterate over its decoded events. `close` hangs up, as a client that goes away does."""

    def __init__(self, url: str, path: str, body: dict, timeout: float = 120.0):
        host = url.removeprefix("http://")
        self._connection = http.client.HTTPConnection(host, timeout=timeout)
        self._connection.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
        self._response = self._connection.getresponse()
        self.status = self._response.status

    def __iter__(self):
        for line in self._response:
            data = line.decode().removeprefix("data:").strip() if line.startswith(b"data:") else ""
            if data and data != "[DONE]":
                yield json.loads(data)

    def close(self):
        # The response keeps the socket open too.
        self._response.close()
        self._connection.close()


class Answer:
    """What a finished stream of one choice said."""

    def __init__(self, events: list):
        self.events = events
        self.error = next((event["error"] for event in events if "error" in event), None)
        choices = [choice for event in events for choice in event.get("choices", [])]
        self.text = "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)
        self.finish_reasons = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
        self.logprobs = [entry for choice in choices for entry in (choice.get("logprobs") or {}).get("content") or []]
        self.usage = next((event["usage"] for event in reversed(events) if event.get("usage")), None)


def stream(url: str, path: str, body: dict) -> Answer:
    events = Stream(url, path, body)
    assert events.status == 200, events.status
    return Answer(list(events))
