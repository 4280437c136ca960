"""What the access log tells of a request, and what it keeps to itself."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator, Sequence
from itertools import count
from queue import SimpleQueue
from tempfile import TemporaryFile
from typing import NamedTuple
from urllib.request import Request

import pytest
from openai import APIError, APIStatusError, OpenAI
from starlette.types import Message, Receive, Scope, Send

import lacli
from lacli.__main__ import _Heedless
from lacli.errors import LacliError
from lacli.llamacpp.library import captured_stderr
from lacli.llamacpp.sampling import SamplingSettings
from lacli.serve.access import AccessLog, own_stderr, unless_full
from lacli.serve.app import Server, ServeSettings
from lacli.serve.guard import GuardSettings
from lacli.serve.meter import Meter
from tests.serve.conftest import NAME, serving
from tests.serve.test_app import get
from tests.serve.test_fields import asked

KEY = {"Authorization": "Bearer two"}


class Logged(NamedTuple):
    """A server with two keys, and the lines of its log as they come."""

    address: str
    lines: SimpleQueue[str]

    def words(self) -> Sequence[str]:
        """The next line's words."""
        return self.lines.get(timeout=10).split()


@pytest.fixture(scope="module")
def logged(model: lacli.Model) -> Iterator[Logged]:
    lines: SimpleQueue[str] = SimpleQueue()
    app = Server(model, ServeSettings(NAME, SamplingSettings())).app(GuardSettings(("one", "two")), said=lines.put)
    with serving(app) as address:
        yield Logged(address, lines)


def test_a_line_has_the_key_the_status_and_the_tokens_and_not_the_prompt(logged: Logged) -> None:
    client = OpenAI(api_key="two", base_url=f"{logged.address}/v1", max_retries=0)
    reply = client.completions.create(model="any", prompt="secret", max_tokens=7)
    assert reply.usage
    counts = f"{reply.usage.prompt_tokens}+7"
    *words, seconds, unit = logged.words()
    assert words == ["127.0.0.1", "key", "2", "POST", "/v1/completions", "200", counts, "tokens"]
    assert float(seconds) >= 0 and unit == "s"


def test_a_slow_answer_of_a_busy_machine_is_told(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lacli.session.report.MIN_CORE_S", 0)
    monkeypatch.setattr("lacli.api.loop.process_time", count(1e-9, 1e-9).__next__)
    client = OpenAI(api_key="two", base_url=f"{logged.address}/v1", max_retries=0)
    for slow, told in ((1e9, False), (0, True)):
        monkeypatch.setattr("lacli.serve.access.BUSY_AFTER_S", slow)
        client.completions.create(model="any", prompt="def f(", max_tokens=7)
        assert " ".join(logged.words()).endswith(" s: other programs had the cores for 100% of the time") == told


def test_a_long_wait_for_a_place_is_told(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    client = OpenAI(api_key="two", base_url=f"{logged.address}/v1", max_retries=0)
    for least, told in ((1e9, False), (-1.0, True)):
        monkeypatch.setattr("lacli.serve.access.TOLD_WAIT_S", least)
        client.completions.create(model="any", prompt="def f(", max_tokens=2)
        assert ("(begun after" in " ".join(logged.words())) == told


def test_an_answer_that_its_client_left_is_broken_off_and_has_its_id_in_the_log(logged: Logged) -> None:
    client = OpenAI(api_key="one", base_url=f"{logged.address}/v1", max_retries=0)
    more = {"ignore_eos": True}
    stream = client.completions.create(model="any", prompt="def f(", max_tokens=2000, stream=True, extra_body=more)
    next(iter(stream))
    stream.close()
    words = logged.words()
    assert "200 broken off" in " ".join(words)
    assert words[-2:] == ["id", stream.response.headers["X-Request-Id"]]


def test_a_stream_that_ends_with_an_error_is_broken_off(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise LacliError("no more")

    monkeypatch.setattr("lacli.serve.choices.Choice._delta", fail)
    client = OpenAI(api_key="one", base_url=f"{logged.address}/v1", max_retries=0)
    with pytest.raises(APIError, match="no more"):
        list(client.completions.create(model="any", prompt="def f(", max_tokens=2000, stream=True))
    assert "200 broken off" in " ".join(logged.words())


def test_only_errors_are_told_of_what_is_asked_for_all_the_time(logged: Logged) -> None:
    for path, status in (("/health", "200"), ("/slots", "401"), ("/v1/models?key=secret%0A", "401")):
        asked(logged.address, "GET", path)
        if status == "401":
            assert logged.words()[:4] == ["127.0.0.1", "GET", path.partition("?")[0], status]


@pytest.mark.parametrize(("headers", "words"), [({}, "no API key"), ({"X-Api-Key": "three"}, "the API key is wrong")])
def test_a_client_without_a_right_key_is_told_how_to_send_it(
    logged: Logged, headers: dict[str, str], words: str
) -> None:
    said = get(Request(f"{logged.address}/v1/models", headers=headers))["error"]["message"]
    assert said.startswith(words) and "Authorization: Bearer" in said
    assert "401" in logged.words()


@pytest.mark.parametrize(
    ("given", "is_kept"), [("of-the-client", True), ("", False), ("a b", False), ("x" * 65, False)]
)
def test_an_id_of_an_answer_leads_to_the_line_of_a_request_that_failed(
    logged: Logged, given: str, is_kept: bool
) -> None:
    client = OpenAI(api_key="two", base_url=f"{logged.address}/v1", max_retries=0)
    own = {"X-Request-Id": given}
    answered = client.completions.create(model="any", prompt="def f(", max_tokens=1, extra_headers=own)
    assert logged.words()[-1] == "s"
    with pytest.raises(APIStatusError) as caught:
        client.completions.create(model="any", prompt="def f(", max_tokens=-9, extra_headers=own)
    assert logged.words()[-2:] == ["id", caught.value.request_id]
    assert [each == given for each in (answered._request_id, caught.value.request_id)] == 2 * [is_kept]
    assert answered._request_id and (answered._request_id != caught.value.request_id) == (not is_kept)


def test_metrics_count_the_answers_by_their_status(logged: Logged) -> None:
    def count(code: int) -> int:
        client = OpenAI(api_key="one", base_url=logged.address, max_retries=0)
        found = re.search(rf'^lacli:requests_total{{code="{code}"}} (\d+)$', client.get("/metrics", cast_to=str), re.M)
        return int(found[1]) if found else 0

    before = count(401), count(404)
    for headers in ({}, KEY):
        asked(logged.address, "GET", "/nothing", **headers)
    assert (count(401), count(404)) == (before[0] + 1, before[1] + 1)


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("body", [b'{"error": {"message": "no\\nrole"}}', b"[]", b""])
def test_why_a_request_was_refused_is_told_with_v_alone(verbose: bool, body: bytes) -> None:
    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 400, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    async def send(message: Message) -> None:
        pass

    lines: list[str] = []
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1",
        "raw_path": b"/v1",
        "client": ("1.2.3.4", 5),
        "headers": [],
    }
    asyncio.run(AccessLog(refuse, Meter(), lines.append, polled=verbose)(scope, receive, send))
    (line,) = lines
    assert re.search(r"POST /v1 400 \d\.\d\d s id [0-9a-f]{8}$", line.partition(": ")[0])
    assert ("role" in line) == (verbose and b"role" in body) and ("no reason" in line) == (verbose and body == b"[]")
    assert "\n" not in line


def test_a_full_pipe_holds_up_nobody_and_what_was_left_out_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    # Whoever writes into it when it is full fails at once, in the place of waiting for ever.
    os.set_blocking(writer, False)
    with open(reader, "rb", buffering=0) as read, open(writer, "w", buffering=1, encoding="utf-8") as errors:
        monkeypatch.setattr("sys.stderr", errors)
        say = unless_full(lambda line: print(line, file=errors))
        for number in range(1000):
            say(f"{number} " + "x" * 1000)
        told = read.read(1 << 20)
        say("last")
        told += read.read(1 << 20)
    dated = [re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (.*)", line) for line in told.decode().splitlines()]
    *lines, counted, last = (found[1] for found in dated if found)
    assert all(dated)
    assert 0 < len(lines) < 1000 and last == "last"
    assert counted == f"{1000 - len(lines)} lines left out: this log was not read"


def test_a_line_is_told_where_it_belongs_while_a_grammar_is_read() -> None:
    with TemporaryFile("w+") as told, open(2, "w", closefd=False) as errors:
        original = os.dup(2)
        os.dup2(told.fileno(), 2)
        try:
            own = own_stderr(errors)
            assert own
            with captured_stderr() as captured, own:
                print("a line", file=own)
        finally:
            os.dup2(original, 2)
            os.close(original)
        told.seek(0)
        assert told.read() == "a line\n" and captured == [""]


def test_a_line_without_a_reader_raises_nothing_in_the_programs_own_stderr() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with _Heedless(os.fdopen(writer, "wb"), "utf-8", line_buffering=True) as errors:
        own = own_stderr(errors)
        assert own
        with own:
            for _ in range(2):
                print("a line", file=own)


def test_a_log_that_had_no_room_goes_on_where_there_is_some_again() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    os.set_blocking(reader, False)
    with open(reader, "rb", buffering=0) as pipe, _Heedless(os.fdopen(writer, "wb"), "utf-8") as errors:
        own = own_stderr(errors)
        assert own
        with own:
            while True:
                try:
                    os.write(writer, b"x" * 4096)
                except BlockingIOError:
                    break
            print("is lost", file=own)
            assert pipe.read(1 << 20)
            print("is told", file=own)
            assert (pipe.read(1 << 20) or b"").endswith(b"is told\n")
