"""llama.cpp's and lacli's own fields of requests, and the switches of the server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.request import Request, urlopen

import pytest
from starlette.testclient import TestClient

import lacli
from lacli.llamacpp.sampling import SamplingSettings
from lacli.serve.protocol import AnswerRequest, ChatRequest, CompletionRequest
from lacli.serve.run import access_for
from lacli.text.json_schema import checked
from tests.serve.conftest import app_of
from tests.serve.test_app import BEGUN, QUESTION, function, post

LONG = [{"role": "user", "content": "Write a function that adds numbers. " * 12}]

SENTENCE = "It is True if the sun"


def events(url: str, body: Mapping[str, Any]) -> list[Any]:
    """Return the events of a stream, without [DONE]. Checks the headers that keep proxies from storing the stream."""
    with urlopen(Request(url, json.dumps({**body, "stream": True}).encode())) as reply:
        assert (reply.headers["X-Accel-Buffering"], reply.headers["Cache-Control"]) == ("no", "no-cache")
        lines = [line[6:] for line in reply.read().splitlines() if line.startswith(b"data: ")]
    return [json.loads(line) for line in lines if line != b"[DONE]"]


@pytest.fixture(scope="module")
def closed(model: lacli.Model) -> TestClient:
    """Return a client of a server with a key, without slots, metrics and page, and with two allowed origins."""
    access = access_for(["0.0.0.0"], ["key"], ["https://a.example", "localhost"])
    return TestClient(app_of(model, access, off=("/slots", "/metrics", "/")))


@pytest.mark.parametrize("path", ["v1/chat/completions", "v1/completions", "completion", "v1/responses"])
def test_events_tell_how_far_the_prompt_is_read(address: str, path: str) -> None:
    body: dict[str, Any] = {"max_tokens": 3, "timings_per_token": True}
    body |= {"input": LONG} if "responses" in path else {"messages": LONG, "prompt": LONG[0]["content"]}
    assert not any("prompt_progress" in event for event in events(f"{address}/{path}", body))
    found = events(f"{address}/{path}", {**body, "return_progress": True})
    progress = [event["prompt_progress"] for event in found if "prompt_progress" in event]
    assert progress[0]["processed"] == progress[0]["cache"] > 0
    assert progress[-1]["processed"] == progress[-1]["total"]
    first = next(event["timings"] for event in found if "prompt_progress" in event)
    assert (first["prompt_n"], first["prompt_ms"], first["predicted_n"]) == (0, 0, 0)


@pytest.mark.parametrize("path", ["v1/chat/completions", "v1/completions", "completion"])
@pytest.mark.parametrize(("stop", "text"), [(" True if the", "It is"), ("rue if the", "It is T"), ("no", SENTENCE)])
def test_log_probabilities_are_of_tokens_of_which_the_text_has_a_part(
    address: str, path: str, stop: str, text: str
) -> None:
    """Each stop text has several tokens."""
    body = {"messages": QUESTION, "prompt": "x", "grammar": f'root ::= "{SENTENCE}"', "stop": stop, "n_probs": 1}
    body["logprobs"] = "chat" in path
    texts, entries = list[str](), list[list[str]]()
    for found in (post(f"{address}/{path}", body), *events(f"{address}/{path}", body)):
        choice = found["choices"][0] if "choices" in found else found
        told = choice.get("message") or choice.get("delta") or choice
        texts.append(told.get("content") or told.get("text") or "")
        told = choice.get("completion_probabilities") or (choice.get("logprobs") or {}).get("content") or []
        entries.append([each["token"] for each in told if each["token"]])
    assert texts[0] == "".join(texts[1:]) == text
    assert entries[0] == sum(entries[1:], [])
    *before, last = entries[0]
    assert len("".join(before)) < len(text) and ("".join(before) + last).startswith(text)


@pytest.mark.parametrize("more", [{}, {"continue_final_message": True, "add_generation_prompt": False}])
def test_an_answer_that_is_begun_goes_on(address: str, more: Mapping[str, Any]) -> None:
    prompts = [
        post(f"{address}/apply-template", {"messages": messages, **each})["prompt"]
        for messages, each in ((QUESTION, {}), (BEGUN, more))
    ]
    assert prompts[1] == prompts[0] + "def add(a"
    reply = post(f"{address}/v1/chat/completions", {"messages": BEGUN, "max_tokens": 8, **more})
    raw = post(f"{address}/completion", {"prompt": prompts[1], "n_predict": 8})
    assert reply["choices"][0]["message"]["content"] == raw["content"]
    another = post(f"{address}/apply-template", {"messages": BEGUN, "add_generation_prompt": True})["prompt"]
    assert "def add(a" in another and not another.endswith("def add(a")


def test_a_prompt_may_be_an_object_or_texts_and_tokens(address: str) -> None:
    text = "def f(x): pass"
    tokens = post(f"{address}/tokenize", {"content": text, "add_special": True})["tokens"]
    same = [text, tokens, {"prompt_string": text}]
    found = post(f"{address}/completion", {"prompt": same, "n_predict": 4})
    assert len({each["content"] for each in found}) == 1 and len(found) == 3
    mixed = post(f"{address}/completion", {"prompt": [*tokens, "\n    "], "n_predict": 1, "verbose": True})
    assert mixed["prompt"] == text + "\n    "


@pytest.mark.parametrize(("path", "status"), [("/slots", 501), ("/metrics", 501), ("/", 404), ("/health", 200)])
def test_switches_turn_endpoints_off(closed: TestClient, path: str, status: int) -> None:
    assert closed.get(path, headers={"Authorization": "Bearer key"}).status_code == status


@pytest.mark.parametrize(
    ("origin", "may"),
    [("https://a.example", True), ("http://127.0.0.1:3000", True), ("http://localhost.b.example", False)],
)
def test_scripts_of_named_pages_may_ask(closed: TestClient, origin: str, may: bool) -> None:
    wanted = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    headers = closed.options("/v1/chat/completions", headers=wanted).headers
    assert (headers.get("access-control-allow-origin") == origin) == may


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("v1/chat/completions", {"logprobs": True, "top_logprobs": -1}),
        ("v1/completions", {"logprobs": -1}),
        ("completion", {"n_probs": -1}),
    ],
)
def test_minus_1_log_probabilities_are_none(address: str, path: str, asked: Mapping[str, Any]) -> None:
    reply = post(f"{address}/{path}", {"messages": QUESTION, "prompt": "x", "max_tokens": 1, **asked})
    assert "completion_probabilities" not in reply and not any(each["logprobs"] for each in reply.get("choices", ()))


SAMPLED = SamplingSettings(temp=0.5, seed=3)


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        ({"repetition_penalty": 1.5}, {"repeat_penalty": 1.5}),
        ({"repetition_penalty": 1.5, "repeat_penalty": 1.2}, {"repeat_penalty": 1.2}),
        (dict.fromkeys(("temperature", "top_p", "min_p", "typical_p", "xtc_probability"), -1),
         {"temp": 0, "top_p": 0, "min_p": 0, "typical": 0, "xtc_probability": 0}),
        (dict.fromkeys(("seed", "top_k", "repeat_last_n", "dry_penalty_last_n"), -1),
         {"seed": -1, "top_k": -1, "repeat_last_n": -1, "dry_penalty_last_n": -1}),
        (dict.fromkeys(("temperature", "seed", "top_k", "repetition_penalty", "logit_bias", "grammar", "json_schema",
                        "response_format", "ignore_eos")), {}),
        ({"logit_bias": {"5": None, "6": 1}}, {"logit_bias": ((6, 1.0),)}),
        ({"logit_bias": [[5, None], [6, False]]}, {"logit_bias": ((6, float("-inf")),)}),
    ],
)  # fmt: skip
def test_how_tokens_are_drawn_is_read_as_llama_server_reads_it(
    body: Mapping[str, Any], changed: Mapping[str, Any]
) -> None:
    assert checked(AnswerRequest, body).sampling(SAMPLED, lambda text: []) == replace(SAMPLED, **changed)


@pytest.mark.parametrize(
    ("kind", "body", "read"),
    [
        (ChatRequest, {"max_completion_tokens": None, "max_tokens": -1}, {"max_tokens": -1}),
        (ChatRequest, {"n": None, "stop": None, "stream": None, "tools": None}, {"n": 1, "stop": [], "stream": False}),
        (ChatRequest, {"stream_options": {"include_usage": None}}, {"stream": False}),
        (CompletionRequest, {"logprobs": None, "n_probs": 2}, {"logprobs": None, "n_probs": 2}),
        *((ChatRequest, {"stop": stop}, {"stop": []}) for stop in ("", [], [""], [None, ""])),
        (ChatRequest, {"stop": ["", "a"]}, {"stop": ["a"]}),
    ],
)
def test_null_counts_as_absent_and_empty_stops_are_passed_over(
    kind: type[AnswerRequest], body: Mapping[str, Any], read: Mapping[str, Any]
) -> None:
    asked = checked(kind, {"messages": QUESTION, "prompt": "x", **body})
    assert {name: getattr(asked, name) for name in read} == read


COLOUR: Any = {"type": "object", "properties": {"a": {"type": "string", "format": "colour"}}}


@pytest.mark.parametrize(
    ("path", "form"),
    [
        *((path, {"json_schema": COLOUR}) for path in ("v1/chat/completions", "v1/completions", "completion")),
        ("v1/chat/completions", {"tools": [function("f", COLOUR)], "tool_choice": "required"}),
    ],
)
def test_a_reply_names_what_of_a_schema_is_not_followed(qwen: str, path: str, form: Mapping[str, Any]) -> None:
    url, body = f"{qwen}/{path}", {"messages": QUESTION, "prompt": "x", "max_tokens": 2}
    followed = json.loads(json.dumps(form).replace(', "format": "colour"', ""))
    for asked, is_followed in ((form, False), (followed, True)):
        for reply in (post(url, {**body, **asked}), events(url, {**body, **asked})[-1]):
            assert ("warnings" not in reply) if is_followed else "colour" in reply["warnings"][0]


def test_a_field_is_taken_refused_or_named_in_the_log_once(
    model: lacli.Model, caplog: pytest.LogCaptureFixture
) -> None:
    client = TestClient(app_of(model))
    body = {"prompt": "def f(", "max_tokens": 1}
    taken = {"user": "a", "n_keep": 3, "suffix": "", "functions": None, "min_tokens": 0, "max_tokenz\n": 9}
    for _ in range(2):
        assert client.post("/v1/completions", json={**body, **taken}).json()["choices"]
    named = [record.message for record in caplog.records if record.name.startswith("lacli")]
    told = [message.removeprefix("a field of a request is ignored: ") for message in named]
    assert told == ["user", "n_keep", "max_tokenz\N{SYMBOL FOR LINE FEED}"]
    for refused in ({"functions": [{"name": "f"}]}, {"min_tokens": 30}):
        error = client.post("/v1/completions", json={**body, **refused}).json()["error"]
        assert error["code"] == 400 and f"{[*refused][0]}: this field is not supported" in error["message"]
