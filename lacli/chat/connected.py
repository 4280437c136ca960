"""A chat with a server of OpenAI's protocol: `lacli serve`, llama-server or another one."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from lacli.chat.repl import ChatPlan, Opened, converse
from lacli.chat.setting import SETTINGS
from lacli.chat.settings import ChatSettings
from lacli.chat.talk import Conversation, Message, Talk
from lacli.errors import LacliError, PromptError, UsageError, reason_of
from lacli.hub.library import without_secrets
from lacli.pool import NgramPool
from lacli.session.generation import Answer
from lacli.session.report import FULL, answer_words, describe_sampling, prompt_words
from lacli.settings import Detail
from lacli.stats import Finish, RunStatistics
from lacli.terminal.interrupts import without_ctrl_c
from lacli.terminal.screen import Screen
from lacli.terminal.waiting import Say, reading_words
from lacli.text.format import counted
from lacli.text.reasoning import answer_of
from lacli.text.stream import Piece
from lacli.tree import Origin

if TYPE_CHECKING:
    import httpx2

CONNECT_S = 10.0
"""Seconds until a server has to take a connection; an answer may take any time."""

SENT = {
    "max_tokens": "max_tokens",
    "stops": "stop",
    "seed": "seed",
    "temp": "temperature",
    "typical": "typical_p",
    "top_nsigma": "top_n_sigma",
    "dynatemp_exp": "dynatemp_exponent",
    "mirostat_lr": "mirostat_eta",
    "mirostat_ent": "mirostat_tau",
    "dry_sequence_breaker": "dry_sequence_breakers",
    "logit_bias": "logit_bias",
    "json_schema": "response_format",
    **{
        name: name
        for name in (
            "top_k", "top_p", "min_p", "xtc_probability", "xtc_threshold", "dynatemp_range", "repeat_penalty",
            "repeat_last_n", "presence_penalty", "frequency_penalty", "dry_multiplier", "dry_base",
            "dry_allowed_length", "dry_penalty_last_n", "mirostat", "ignore_eos", "grammar", "mode",
        )
    },
}  # fmt: skip
"""Settings that a server is told, by their fields' names, with OpenAI's or llama.cpp's words for them."""

LEAST_BIAS = -100.0
"""OpenAI's number for a token that is forbidden; JSON has no -inf."""

SHOWN_MODELS = 5
"""Names of a server's models that are told to a user who named another one."""

WAYS = "/compact drops the oldest questions, /undo takes the last one back, /clear forgets all"
"""What a user can do about a context that is full."""

CONNECT_HINTS = {
    "CERTIFICATE_VERIFY_FAILED": "SSL_CERT_FILE=FILE names a certificate to trust",
    "WRONG_VERSION_NUMBER": "it may speak http:// and not https://",
}
"""What to do where no connection is made, by OpenSSL's names of its errors."""

ENDS: dict[str | None, Finish] = {"stop": "eog", "length": "length"}


class Server:
    """A server and one of its models.

    `name`: the model's. `is_lacli`: whether it tells of each step. `cells`: tokens of its context, 0 where it does not
    say.
    """

    def __init__(self, url: str, key: str = "", model: str = "", transport: httpx2.BaseTransport | None = None) -> None:
        """`model`: the name of one of its models; by default the first. `transport`: what carries requests.

        Raises LacliError where it does not answer.
        """
        import httpx2

        self.name = ""
        path = url.removeprefix("unix:") if url.startswith("unix:") else None
        self._base = "http://localhost" if path else (url if "://" in url else f"http://{url}")
        self._base = self._base.rstrip("/").removesuffix("/chat/completions").removesuffix("/v1")
        self.shown = url if path else without_secrets(self._base)
        if url in ("", "unix:"):
            raise UsageError("--connect names no address", "for example http://127.0.0.1:8080, or unix:PATH")
        if url.isdecimal():
            # As an address it would be another machine's, which got the key.
            raise UsageError(f"--connect {url} names no machine", f"write --connect http://localhost:{url}")
        try:
            self._client = httpx2.Client(
                headers={"Authorization": f"Bearer {key}"} if key else {},
                timeout=httpx2.Timeout(None, connect=CONNECT_S),
                transport=httpx2.HTTPTransport(uds=path) if path else transport,
            )
        except OSError as error:
            raise LacliError(f"cannot use the certificates of SSL_CERT_FILE: {reason_of(error)}") from error
        try:
            models = self._asked("GET", "/v1/models")["data"]
            found: dict[str, Any] = next(
                (each for each in models if model in ("", each["id"], *(each.get("aliases") or ()))), {}
            )
            if models and not found:
                names = ", ".join(str(each["id"]) for each in models[:SHOWN_MODELS])
                raise UsageError(
                    f"{self.shown} has no model {model}", f"it has {names}; a first message goes behind -p"
                )
            self.name = model or str(found["id"])
            self.is_lacli = found.get("owned_by") == "lacli"
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise self._no_protocol() from error
        self.cells = 0
        self.look_at_context()

    def look_at_context(self) -> None:
        """Ask how many tokens the context has; a server that was started again may have another one."""
        # The address is llama.cpp's, and others have none.
        with suppress(LacliError, KeyError, TypeError, ValueError):
            self.cells = int(self._asked("GET", "/props")["default_generation_settings"]["n_ctx"])

    def close(self) -> None:
        self._client.close()

    def tokens_of(self, text: str) -> int:
        """The number of a text's tokens, 0 where the server does not count them."""
        try:
            return len(self._asked("POST", "/tokenize", {"content": text})["tokens"])
        except (LacliError, KeyError, TypeError):
            return 0

    def events(self, body: Mapping[str, Any]) -> Generator[dict[str, Any]]:
        """Yield the events of an answer; closed before its end, it ends the answer on the server too.

        Raises PromptError for a conversation that is too long, LacliError where the server fails or goes away.
        """
        url = f"{self._base}/v1/chat/completions"
        with self._failures(), self._client.stream("POST", url, json=body) as reply:
            if reply.is_error:
                raise self._refusal(reply.status_code, reply.headers, reply.read())
            for line in reply.iter_lines():
                name, _, data = line.partition(":")
                if name not in ("data", "error") or data.strip() in ("", "[DONE]"):
                    continue
                event = json.loads(data)
                if name == "error" or "error" in event:
                    raise LacliError(f"the server broke the answer off: {_message(event)}", "/regen asks again")
                yield event

    def _asked(self, method: str, path: str, body: object = None) -> Any:
        with self._failures():
            reply = self._client.request(method, self._base + path, json=body)
            if reply.is_error:
                raise self._refusal(reply.status_code, reply.headers, reply.content)
            return json.loads(reply.content)

    def _refusal(self, status: int, headers: Mapping[str, str], content: bytes) -> LacliError:
        """The error that a status other than 200 stands for."""
        try:
            body = json.loads(content)
        except ValueError:
            body = {}
        said = _message(body) or f"it answers with status {status}"
        if status in (401, 403):
            words = "does not take this key" if "authorization" in self._client.headers else "asks for a key"
            return LacliError(f"{self.shown} {words}: {said}", "give one by --api-key KEY, or by LACLI_API_KEY")
        if status in (429, 503):
            wait = f"wait {seconds} s, then " if (seconds := headers.get("retry-after", "")) else ""
            return LacliError(f"the server is busy: {said}", f"{wait}/regen asks again")
        if status == 400 and "context" in said and "exceed" in said:
            return PromptError(said, WAYS)
        if status == 404:
            return LacliError(f"{self.shown}: {said}", "is this the address of a server of OpenAI's protocol?")
        hint = "/mode auto answers as the server was started" if "was loaded for mode" in said else ""
        return LacliError(f"{self.shown} refuses: {said}", hint)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Say in one line what breaks on the way to the server and back."""
        import httpx2

        try:
            yield
        except (httpx2.UnsupportedProtocol, httpx2.InvalidURL, httpx2.LocalProtocolError) as error:
            raise UsageError(f"--connect {self.shown} is no address", "for example http://127.0.0.1:8080") from error
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            url, asked, hint = httpx2.URL(self._base), self.shown, "lacli serve MODEL starts one"
            if not url.port and not self.shown.startswith("unix:"):
                asked += f" port {443 if url.scheme == 'https' else 80}"
                hint = f"--connect {url.scheme}://{url.netloc.decode()}:8080 asks another port"
            hints = (hint for known, hint in CONNECT_HINTS.items() if known in str(error))
            raise LacliError(f"no server answers at {asked}: {error}", next(hints, hint)) from error
        except httpx2.TransportError as error:
            hint = "/regen asks again" if self.name else "it may speak https://"
            raise LacliError("the server ended the connection", hint) from error
        except ValueError as error:
            raise self._no_protocol() from error

    def _no_protocol(self) -> LacliError:
        return LacliError(
            f"{self.shown} does not speak OpenAI's protocol", "give the address that /v1/models stands under"
        )


class ConnectedChat(Talk):
    """Turns of a conversation that a server answers. Only texts are kept of them: tokens are the server's."""

    def __init__(
        self,
        server: Server,
        settings: ChatSettings,
        conversation: Conversation,
        waiting: Callable[[], AbstractContextManager[Say]] = lambda: nullcontext(lambda *forms: None),
    ) -> None:
        """`waiting`: shows a line from a question to the first word of its answer."""
        super().__init__(settings, conversation)
        self._server, self._waiting = server, waiting
        self._used: dict[int, int] = {}
        self._warned: Sequence[object] = ()

    @property
    def description(self) -> str:
        return f"{self.mode} at {self._server.shown}"

    @property
    def template(self) -> str:
        return "the server's"

    @property
    def mode(self) -> str:
        """The model's name: how tokens are guessed is the server's affair. llama-server calls it by its path."""
        return self._server.name.rpartition("/")[2]

    @property
    def guessing(self) -> str:
        own = self.settings.decode_settings.mode
        return "as the server was started" if own == "auto" or not self._server.is_lacli else own

    @property
    def used(self) -> int:
        """Tokens of the context behind the last answer that the server has counted; -1 where it has counted none."""
        length = len(self.conversation.messages)
        known = ((behind, used) for behind, used in self._used.items() if used and behind <= length)
        # One message is the first question, which no answer follows yet.
        used = max(known, default=(0, -1 if length > 1 else 0))[1]
        # The last token of an answer stands in no cell.
        return min(used, self.cells or used)

    @property
    def cells(self) -> int:
        return self._server.cells

    def tokens_of(self, text: str) -> int:
        return self._server.tokens_of(text)

    def compact(self) -> int:
        """Drop the older half of the questions with their answers; the number of those dropped."""
        wanted = max(self.conversation.questions // 2, 1)
        self._used = {}
        return sum(self.conversation.drop_oldest() for _ in range(wanted))

    def recall(self) -> None:
        self._used = {}

    def change(self, settings: ChatSettings, seed: int = -1) -> str:
        told = [*SENT] if self._server.is_lacli else [name for name in SENT if name != "mode"]
        before, self._wanted = self._wanted.values, settings
        unsent = [
            each.name
            for field, each in SETTINGS.items()
            if field not in told and settings.values[field] != before[field]
        ]
        sentences = [f"the server is not told of {', '.join(unsent)}"] if unsent else []
        mode = settings.decode_settings.mode
        if self._server.is_lacli and mode not in ("auto", "plain") and mode != before["mode"]:
            sentences.append(
                f"a server refuses mode {mode} unless it was started in it; /mode auto leaves the choice to it"
            )
        return "; ".join(sentences)

    def report(self, answer: Answer, *, detail: Detail, width: int) -> str:
        run = answer.statistics
        otherwise = "at the server's own limit" if self._has_room_behind(answer) else FULL
        lines = [
            ("server", self.description),
            ("sampling", describe_sampling(self.settings.sampling)),
            # A server counts the prompt behind an answer, which may have been stopped.
            *([("prompt", prompt_words(run))] if run.prompt_tokens else ()),
            ("answer", answer_words(answer, self.settings.max_tokens, otherwise)),
        ]
        if run.drafted:
            lines += [
                ("steps", f"{run.steps:,} for {counted(run.tokens, 'token')}: S = {run.tokens_per_step:.2f} tokens"),
                ("guesses", f"{run.accepted:,} of {run.drafted:,} came true"),
            ]
        return "\n".join(f"{name:9} {text}" for name, text in lines)

    def _turn(self, before: list[Message]) -> Generator[Piece]:
        partial = PartialReply()
        try:
            with closing(self._server.events(self._body())) as events, ExitStack() as unanswered:
                say = unanswered.enter_context(self._waiting())
                say("waiting for the server; Ctrl-C gives up", "waiting")
                for event in events:
                    if read := event.get("prompt_progress"):
                        seconds, done = read["time_ms"] / 1e3, read["processed"]
                        say(*reading_words(done, read["total"], (done - read["cache"]) / seconds if seconds else 0.0))
                    for piece in partial.take(event):
                        unanswered.close()
                        yield piece
            if not partial.ended:
                raise LacliError("the server ended the answer in its middle", "/regen asks again")
            run = (answer := partial.answer()).statistics
            is_full = answer.filled_context(self._wanted.max_tokens) or run.prompt_tokens + run.tokens >= self.cells
            if self.cells and is_full:
                self._server.look_at_context()
        except PromptError:
            self._server.look_at_context()
            self._restore(before)
            raise
        finally:
            with without_ctrl_c():
                if partial.text or partial.ended:
                    self._finish(partial)

    def _finish(self, partial: PartialReply) -> None:
        """Take what came as the answer."""
        answer = partial.answer()
        run = answer.statistics
        self.conversation.answer(answer.text)
        self.turns.append(answer)
        self._used[len(self.conversation.messages)] = run.prompt_tokens + run.tokens if run.prompt_tokens else 0
        if answer.filled_context(self._wanted.max_tokens):
            if self._has_room_behind(answer):
                cut = f"the server ended the answer after {counted(run.tokens, 'token')}, which is its own limit"
                self.notes.append(f"{cut}: -n, or /set n, asks for another")
            else:
                self.notes.append(f"the server's context is full and the answer ends here: {WAYS}")
        if partial.warnings != self._warned:
            self.notes += map(str, partial.warnings)
            self._warned = partial.warnings
        if not answer.text and answer.finish_reason != "interrupt":
            self.notes.append("the answer is empty")

    def _has_room_behind(self, answer: Answer) -> bool:
        """True if the server's context is known to have room for more tokens behind an answer."""
        run = answer.statistics
        return run.prompt_tokens > 0 and run.prompt_tokens + run.tokens < self.cells - 1

    def _body(self) -> dict[str, Any]:
        """The request for the next answer. Of the settings it names the temperature, and those that were changed."""
        # Reasoning of earlier answers is no part of a conversation in OpenAI's protocol.
        messages = [
            each if each["role"] != "assistant" else {**each, "content": answer_of(each["content"])}
            for each in self.conversation.as_messages()
        ]
        values = self._wanted.values
        changed = {field for field in SENT if values[field] != SETTINGS[field].default} | {"temp"}
        chosen = {SENT[field]: values[field] for field in changed - ({"mode"} if not self._server.is_lacli else set())}
        if biases := chosen.get("logit_bias"):
            chosen["logit_bias"] = {str(token): max(bias, LEAST_BIAS) for token, bias in biases}
        if schema := chosen.get("response_format"):
            named = {"name": "answer", "schema": json.loads(schema)}
            chosen["response_format"] = {"type": "json_schema", "json_schema": named}
        steps = {"lacli": {"steps": True}} if self._server.is_lacli else {}
        options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
        if self._server.cells:
            # An answer that is stopped has no last event with its numbers. Servers that are not llama.cpp's may refuse.
            options |= {"timings_per_token": True, "return_progress": True}
        return {"model": self._server.name, "messages": messages, **options, **chosen, **steps}


class PartialReply:
    """Makes an answer of a stream's events. `text`: without reasoning. `ended`: whether the server has said why.

    `warnings`: its sentences on what the answer does not keep to.
    """

    def __init__(self) -> None:
        self.text = ""
        self.ended = False
        self.warnings: Sequence[object] = ()
        self._finish: Finish = "interrupt"
        self._run = RunStatistics()
        self._begin = perf_counter()

    def take(self, event: Mapping[str, Any]) -> Sequence[Piece]:
        """Count an event, and give its text."""
        run, pieces = self._run, []
        for choice in event.get("choices") or ():
            pieces += _pieces(choice.get("delta") or {}, event.get("lacli"))
            if reason := choice.get("finish_reason"):
                self.ended, self._finish = True, ENDS.get(reason, "stop")
        if pieces:
            run.first_token_s = run.first_token_s or perf_counter() - self._begin
            run.decode_s = perf_counter() - self._begin - run.first_token_s
            run.steps += 1
            run.tokens += event.get("lacli", {}).get("tokens", 1)
            run.accepted_from.update(piece.origin for piece in pieces if piece.guessed)
            self.text += "".join(piece.text for piece in pieces if not piece.reasoning)
        self.warnings = event.get("warnings") or self.warnings
        if usage := event.get("usage"):
            run.prompt_tokens = usage.get("prompt_tokens", 0)
            run.steps = run.tokens = usage.get("completion_tokens", run.tokens)
        if timings := event.get("timings"):
            self._measured(timings)
        return pieces

    def _measured(self, timings: Mapping[str, Any]) -> None:
        """Take llama.cpp's numbers of an answer, which the server has measured. A step has one token of its own."""
        run = self._run
        run.reused_tokens = timings.get("cache_n", 0)
        run.prompt_tokens = run.reused_tokens + timings["prompt_n"]
        run.prompt_s = timings["prompt_ms"] / 1e3
        run.tokens, run.decode_s = timings["predicted_n"], timings["predicted_ms"] / 1e3
        run.drafted, run.accepted = timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)
        run.steps = run.tokens - run.accepted

    def answer(self) -> Answer:
        """The text so far, and what it cost."""
        return Answer(self.text, (), self._finish, self._run, NgramPool(2, 1).statistics())


def _pieces(delta: Mapping[str, Any], record: Mapping[str, Any] | None) -> list[Piece]:
    """The text of an event: with the origin of each token where the server tells it."""
    if record and (pieces := record.get("pieces")):
        return [Piece(each["text"], Origin(each["origin"]), bool(each["reasoning"])) for each in pieces]
    thought, text = delta.get("reasoning_content"), delta.get("content")
    return [*([Piece(thought, reasoning=True)] if thought else ()), *([Piece(text)] if text else ())]


def _message(body: object) -> str:
    """What an error says, in OpenAI's shape or as a text; "" for nothing."""
    error = body.get("error", body) if isinstance(body, Mapping) else body
    found = error.get("message", "") if isinstance(error, Mapping) else error
    return " ".join(str(found or "").split())


def chat_with(url: str, key: str, plan: ChatPlan, screen: Screen) -> int:
    """Talk with a server until the user ends it; the exit code. Raises Interrupted for Ctrl-C at the prompt."""
    name = plan.model

    def opened(plan: ChatPlan, conversation: Conversation, stack: ExitStack) -> Opened:
        server = stack.enter_context(closing(Server(url, key, name)))
        return Opened(ConnectedChat(server, plan.settings, conversation, screen.waiting))

    # A saved chat has a model of this machine, and the server's is none.
    return converse(replace(plan, model=""), screen, opened)
