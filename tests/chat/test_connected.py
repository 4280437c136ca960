"""A chat with a server that says what a test wants it to say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from lacli.chat.connected import ConnectedChat, Server
from lacli.chat.repl import status_line
from lacli.chat.settings import ChatSettings
from lacli.chat.talk import Conversation
from lacli.errors import LacliError, PromptError, UsageError
from lacli.settings import DecodeSettings
from lacli.tree import Origin
from tests.program import call

MODELS = {"data": [{"id": "toy", "owned_by": "lacli"}, {"id": "other", "owned_by": "lacli"}]}
PROPS = {"default_generation_settings": {"n_ctx": 64}}
TIMINGS = {"cache_n": 2, "prompt_n": 5, "prompt_ms": 10, "predicted_n": 6, "predicted_ms": 30}
END = {"choices": [{"delta": {}, "finish_reason": "stop"}], "timings": {**TIMINGS, "draft_n": 9, "draft_n_accepted": 4}}


def said(text: str, **more: Any) -> dict[str, Any]:
    """An event of a stream that adds a text."""
    return {"choices": [{"delta": {"content": text}}], **more}


class Answering(httpx2.SyncByteStream):
    """The body of a stream of `events`; what is no event is raised in its place. `closed`: whether nobody reads on."""

    def __init__(self, *events: Mapping[str, Any] | Exception) -> None:
        self.events, self.closed = events, False

    def __iter__(self) -> Iterator[bytes]:
        for event in self.events:
            if isinstance(event, Exception):
                raise event
            yield f"data: {json.dumps(event)}\n\n".encode()
        yield b"data: [DONE]\n\n"

    def close(self) -> None:
        self.closed = True


def chat_with(
    reply: Callable[[dict[str, Any]], httpx2.Response], models: object = MODELS, model: str = ""
) -> ConnectedChat:
    """A chat with a server that takes a request's body and replies to it."""

    def handle(request: httpx2.Request) -> httpx2.Response:
        known = {"/v1/models": models, "/props": PROPS, "/tokenize": {"tokens": [1, 2]}}
        if found := known.get(request.url.path):
            return httpx2.Response(200, json=found)
        assert request.url.path == "/v1/chat/completions" and request.headers["authorization"] == "Bearer key"
        return reply(json.loads(request.content))

    server = Server("server/v1", "key", model, httpx2.MockTransport(handle))
    return ConnectedChat(server, ChatSettings(), Conversation())


def models_at(url: httpx2.URL) -> httpx2.Response:
    return httpx2.Response(200, json=MODELS) if url.path == "/v1/models" else httpx2.Response(404)


def streaming(*events: Mapping[str, Any] | Exception) -> ConnectedChat:
    return chat_with(lambda body: httpx2.Response(200, stream=Answering(*events)))


def refusing(status: int, body: object, **headers: str) -> ConnectedChat:
    return chat_with(lambda request: httpx2.Response(status, json=body, headers=headers))


def test_the_numbers_of_an_answer_are_those_that_the_server_has_measured() -> None:
    chat = streaming(said("ye"), said("s"), END)
    assert [piece.text for piece in chat.ask("is it?")] == ["ye", "s"]
    assert chat.conversation.last_answer == "yes" and chat.last and chat.last.finish_reason == "eog"
    run = chat.last.statistics
    assert (run.prompt_tokens, run.reused_tokens, run.tokens, run.steps) == (7, 2, 6, 2)
    assert chat.used == 13 and chat.cells == 64 and chat.tokens_of("text") == 2
    chat.conversation.ask("and then?")
    assert chat.used == 13, "a question without an answer was not counted yet"
    chat.undo()
    assert "2 for 6 tokens: S = 3.00" in chat.report(chat.last, detail="short", width=80)
    chat.clear()
    assert chat.used == 0


def test_tokens_that_the_server_has_not_counted_are_not_known() -> None:
    chat = streaming(said("yes"), END)
    for question in ("first?", "second?"):
        assert [piece.text for piece in chat.ask(question)] == ["yes"]
    assert chat.used == 13
    assert chat.compact() == 1 and chat.used == -1
    assert [piece.text for piece in chat.ask("third?")] == ["yes"] and chat.used == 13
    chat.resume(Conversation("", [*chat.conversation.messages]))
    assert chat.used == -1
    assert status_line(None, None, -1, 64, "demo", 80) == "demo · context ? of 64"
    chat.resume(Conversation(""))
    assert chat.used == 0


@pytest.mark.parametrize(
    ("read", "words", "ended"),
    [
        (5, "6 tokens, which is its own limit: -n", "ended at the server's own limit"),
        (56, "context is full", "ended with the context full"),
    ],
)
def test_an_answer_that_the_server_cut_says_by_what(read: int, words: str, ended: str) -> None:
    end = {"choices": [{"delta": {}, "finish_reason": "length"}], "timings": {**TIMINGS, "prompt_n": read}}
    chat = streaming(said("yes"), end)
    assert [piece.text for piece in chat.ask("is it?")] == ["yes"]
    assert len(chat.notes) == 1 and words in chat.notes[0]
    assert chat.last and chat.report(chat.last, detail="short", width=80).endswith(ended)


def test_each_token_has_the_origin_that_the_server_tells_and_reasoning_is_no_part_of_the_answer() -> None:
    pieces = [
        {"text": "hm", "origin": "model", "reasoning": True},
        {"text": "yes", "origin": "suffix", "reasoning": False},
    ]
    chat = streaming(said("yes", lacli={"pieces": pieces, "tokens": 2}), END)
    assert [(piece.origin, piece.reasoning) for piece in chat.ask("?")] == [
        (Origin.MODEL, True),
        (Origin.SUFFIX, False),
    ]
    assert chat.conversation.last_answer == "yes"
    assert chat.last and chat.last.statistics.accepted_from == {Origin.SUFFIX: 1}


def test_a_request_has_the_conversation_the_temperature_and_what_was_changed() -> None:
    bodies: list[dict[str, Any]] = []

    def reply(body: dict[str, Any]) -> httpx2.Response:
        bodies.append(body)
        return httpx2.Response(200, stream=Answering(said("a"), END))

    chat = chat_with(reply)
    chat.conversation.system = "Be brief."
    list(chat.ask("one"))
    sampling = replace(chat.settings.sampling, top_k=7, logit_bias=((3, float("-inf")),), json_schema="{}")
    assert not chat.change(replace(chat.settings, sampling=sampling, stops=("x",), max_tokens=9))
    assert "W" in chat.change(replace(chat.settings, decode_settings=DecodeSettings(window=10)))
    list(chat.ask("two"))
    first, second = bodies
    assert first["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one"}]
    options = {"stream", "stream_options", "timings_per_token", "return_progress", "temperature", "lacli"}
    assert {*first} == {"model", "messages", *options}
    assert [each["role"] for each in second["messages"]] == ["system", "user", "assistant", "user"]
    assert (second["top_k"], second["stop"], second["max_tokens"]) == (7, ["x"], 9)
    assert second["logit_bias"] == {"3": -100.0}
    assert second["response_format"]["json_schema"]["schema"] == {}


def test_another_program_is_told_nothing_of_lacli() -> None:
    bodies: list[dict[str, Any]] = []

    def reply(body: dict[str, Any]) -> httpx2.Response:
        bodies.append(body)
        return httpx2.Response(200, stream=Answering(said("a"), END))

    chat = chat_with(reply, models={"data": [{"id": "/models/toy.gguf"}]})
    assert "mode" in chat.change(replace(chat.settings, decode_settings=DecodeSettings(mode="plain")))
    list(chat.ask("one"))
    assert not {"lacli", "mode"} & {*bodies[0]} and chat.mode == "toy.gguf"


@pytest.mark.parametrize(
    ("status", "headers", "words"),
    [
        (401, {}, "does not take this key"),
        (503, {"Retry-After": "3"}, "busy: no (wait 3 s, then /regen asks again)"),
        (400, {}, "refuses: no"),
        (404, {}, "address"),
    ],
)
def test_a_refusal_is_said_in_one_line_and_leaves_the_question(
    status: int, headers: dict[str, str], words: str
) -> None:
    chat = refusing(status, {"error": {"message": "no"}}, **headers)
    with pytest.raises(LacliError) as caught:
        list(chat.ask("one"))
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert chat.conversation.is_open and not chat.turns


def test_a_mode_that_the_server_may_not_have_is_told_at_once() -> None:
    chat = streaming(END)
    said_of = [chat.change(ChatSettings(DecodeSettings(mode=mode))) for mode in ("plain", "jacobi", "jacobi", "auto")]
    assert ["refuses mode jacobi" in each for each in said_of] == [False, True, False, False]


def test_a_mode_that_the_server_was_not_started_in_is_refused_with_the_command_that_helps() -> None:
    chat = refusing(400, {"error": {"message": "the model was loaded for mode auto, not jacobi"}})
    with pytest.raises(LacliError, match="not jacobi .*/mode auto answers as the server was started"):
        list(chat.ask("one"))


def test_a_question_that_has_no_room_is_taken_back_and_the_context_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = refusing(400, {"error": {"message": "the request exceeds the available context size of 32"}})
    assert chat.cells == 64
    monkeypatch.setitem(PROPS, "default_generation_settings", {"n_ctx": 32})
    with pytest.raises(PromptError, match="/compact"):
        list(chat.ask("one"))
    assert not chat.conversation.messages and chat.cells == 32


def test_a_server_that_was_started_with_another_context_is_no_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = streaming(said("yes"), {"choices": [{"delta": {}, "finish_reason": "length"}], "timings": TIMINGS})
    monkeypatch.setitem(PROPS, "default_generation_settings", {"n_ctx": 14})
    assert [piece.text for piece in chat.ask("is it?")] == ["yes"]
    assert chat.cells == 14 and "context is full" in chat.notes[0]
    larger = streaming(said("yes"), {**END, "timings": {**TIMINGS, "prompt_n": 70}})
    monkeypatch.setitem(PROPS, "default_generation_settings", {"n_ctx": 99})
    assert [piece.text for piece in larger.ask("is it?")] == ["yes"] and (larger.used, larger.cells) == (78, 99)


@pytest.mark.parametrize("broken", [httpx2.ReadError("reset"), {"error": {"message": "a replica is lost"}}, None])
def test_what_came_before_an_answer_broke_off_is_kept(broken: Exception | dict[str, Any] | None) -> None:
    chat = streaming(said("half"), *([broken] if broken else []))
    with pytest.raises(LacliError, match="/regen"):
        list(chat.ask("one"))
    assert chat.conversation.last_answer == "half" and chat.last and chat.last.finish_reason == "interrupt"


def test_an_answer_that_is_left_ends_on_the_server() -> None:
    body = Answering(said("half"), said("whole"), END)
    chat = chat_with(lambda asked: httpx2.Response(200, stream=body))
    with closing(chat.ask("one")) as pieces:
        next(pieces)
        assert not body.closed
    assert body.closed and chat.conversation.last_answer == "half"


def test_a_line_says_how_far_the_server_is_until_the_first_word_of_an_answer() -> None:
    seen: list[str] = []

    @contextmanager
    def waiting() -> Iterator[Callable[..., None]]:
        yield lambda *forms: seen.append(forms[0])
        seen.append("gone")

    read = {"prompt_progress": {"total": 100, "cache": 32, "processed": 64, "time_ms": 2000}}
    chat = streaming({"choices": [{"delta": {"role": "assistant"}}]}, read, said("yes"), END)
    chat._waiting = waiting
    pieces = chat.ask("is it?")
    assert next(pieces).text == "yes"
    assert seen == [
        "waiting for the server; Ctrl-C gives up",
        "reading the prompt 64/100 tokens, 16 tokens/s",
        "gone",
    ]
    assert list(pieces) == [] and seen.count("gone") == 1


@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        ("http://a:8080", httpx2.ConnectError("refused"), "http://a:8080: refused .lacli serve MODEL starts one"),
        ("a", httpx2.ConnectError("refused"), "http://a port 80: refused .--connect http://a:8080 asks another port"),
        ("https://a/v1", httpx2.ConnectError("refused"), "https://a port 443: refused .--connect https://a:8080 asks"),
        ("http://a", httpx2.ConnectError("[SSL: WRONG_VERSION_NUMBER] wrong"), "speak http:// and not"),
        ("http://a", httpx2.RemoteProtocolError("disconnected"), "speak https://"),
    ],
)
def test_a_server_that_cannot_be_reached_is_named_with_what_helps(url: str, error: Exception, words: str) -> None:
    def fail(request: httpx2.Request) -> httpx2.Response:
        raise error

    with pytest.raises(LacliError, match=words):
        Server(url, transport=httpx2.MockTransport(fail))


def test_a_port_without_a_machine_is_refused_with_the_address_that_it_may_be() -> None:
    with pytest.raises(UsageError, match="write --connect http://localhost:8123"):
        Server("8123", "key", transport=httpx2.MockTransport(lambda request: httpx2.Response(200)))


def test_a_model_is_found_by_each_of_its_names() -> None:
    reply = httpx2.Response(200, json={"data": [{"id": "fast", "aliases": ["fast", "team"]}]})
    carried = httpx2.MockTransport(lambda request: reply)
    assert [Server("http://a", model=name, transport=carried).name for name in ("", "team")] == ["fast", "team"]
    with pytest.raises(UsageError, match="no model other"):
        Server("http://a", model="other", transport=carried)


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/chat/completions"])
def test_an_address_may_be_the_one_of_an_endpoint(path: str) -> None:
    assert (
        Server(f"http://a{path}", transport=httpx2.MockTransport(lambda request: models_at(request.url))).name == "toy"
    )


@pytest.mark.parametrize("url", ["", "unix:"])
def test_an_address_that_is_empty_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="--connect names no address"):
        Server(url)
    assert call("chat", "--connect", url).code == 2


def test_certificates_that_cannot_be_read_are_named_by_their_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere")
    with pytest.raises(LacliError, match="SSL_CERT_FILE: No such file"):
        Server("https://a")


def test_what_is_no_server_of_the_protocol_is_named() -> None:
    with pytest.raises(LacliError, match="does not speak OpenAI's protocol"):
        chat_with(lambda body: httpx2.Response(200), models={"data": []})


def test_a_model_that_the_server_does_not_have_is_refused_with_those_that_it_has() -> None:
    assert chat_with(lambda body: httpx2.Response(200), model="other").conversation.questions == 0
    with pytest.raises(LacliError, match="has no model 05b.gguf .it has toy, other;"):
        chat_with(lambda body: httpx2.Response(200), model="05b.gguf")


def test_what_an_answer_does_not_keep_to_is_said_once() -> None:
    chat = streaming(said("yes"), {**END, "warnings": ["the schema's multipleOf is not enforced"]})
    found = []
    for question in ("one", "two"):
        list(chat.ask(question))
        found.append(chat.notes)
    assert found == [["the schema's multipleOf is not enforced"], []]


def test_half_of_the_questions_are_dropped_to_make_room() -> None:
    chat = streaming(said("a"), END)
    for question in "1234":
        list(chat.ask(question))
    assert chat.compact() == 2 and chat.conversation.questions == 2


def test_a_flag_for_a_model_of_its_own_is_refused() -> None:
    done = call("chat", "--connect", "http://127.0.0.1:1", "-c", "512")
    assert done.code == 2 and "-c is for a model in this process" in done.err
