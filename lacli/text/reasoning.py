"""Reasoning blocks: how to find them in a text, and in which form a conversation's history has them."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping
from dataclasses import replace
from typing import Any

from lacli.errors import LacliError
from lacli.text.stream import HeldPieces, Piece, begun_length

PAIRS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "[THINK]": "[/THINK]",
    "<seed:think>": "</seed:think>",
    "<|channel>": "<channel|>",
}
"""Opening and closing markers of a reasoning block: most models', Cohere's, Mistral's, Seed-OSS's and Gemma 4's."""

START, CHANNEL, MESSAGE, END = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"
"""GPT-OSS's format: a header of role and channel, then the message. The channel `final` is the answer."""

CALLED = "to=functions."
"""In a header of GPT-OSS it means that the message holds the arguments of a call."""

OPENERS = {**PAIRS, START: MESSAGE, CHANNEL: MESSAGE, CALLED: MESSAGE}

FRAME = re.compile(r"((<\|start\|>[^<]*)?<\|channel\|>.*?<\|message\|>|<\|end\|>|<\|start\|>)+", re.DOTALL)
"""The markers and headers around GPT-OSS's reasoning."""


class ReasoningSplitter:
    """Marks the reasoning in a stream of pieces, which may cut the text anywhere. Markers belong to the reasoning.

    A block begins only at the start or after other blocks: a model that writes about <think> in its answer does not
    reason. Text that may begin a marker is held back. `begun`: the opening marker at the prompt's end, or "". `bare`:
    return markers with the text "". `closer`: the marker that would close the open block, "" if none is open.
    """

    def __init__(self, begun: str = "", *, bare: bool = False) -> None:
        self._bare = bare
        self.closer = ""
        self._may_begin = True
        self._held = HeldPieces()
        self.feed([Piece(begun)] if begun else [])

    def feed(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Read pieces. Returns the pieces that are certain to be reasoning or answer; a piece of both is cut in two."""
        self._held.pieces += pieces
        known: list[Piece] = []
        while part := self._advance(self._held.text):
            known += part
        return known

    def finish(self) -> list[Piece]:
        """Return the pieces that are still held back, after the last `feed`."""
        length = len(self._held.text)
        return self._take_marker(length) if self.closer == MESSAGE else self._take(length, bool(self.closer))

    def _advance(self, held: str) -> list[Piece]:
        """Take and return the held pieces that are certain now, [] if none is. `held`: the text of all held pieces."""
        if self.closer:
            return self._inside(held)
        if self._may_begin:
            if blank := len(held) - len(held.lstrip()):
                return self._take(blank, False)
            for opener, closer in OPENERS.items():
                if held.startswith(opener):
                    self.closer = closer
                    return self._inside(held) if closer == MESSAGE else self._take_marker(len(opener))
            if any(opener.startswith(held) for opener in OPENERS):
                return []
            self._may_begin = False
        return self._take(len(held), False)

    def _inside(self, held: str) -> list[Piece]:
        closer, at = self.closer, held.find(self.closer)
        if closer == MESSAGE:
            return self._header(held[: at + len(MESSAGE)]) if at >= 0 else []
        if at < 0:
            at = len(held) - begun_length(held, [closer])
        known = self._take(at, True)
        if not held.startswith(closer, at):
            return known
        self.closer = ""
        return known + self._take_marker(len(closer))

    def _header(self, header: str) -> list[Piece]:
        """Take and return the held GPT-OSS `header` as a marker. With `bare`, the header of a call is answer text."""
        _, channel, name = header.removesuffix(MESSAGE).rpartition(CHANNEL)
        is_call = self._bare and CALLED in header
        # A header without a channel begins the answer too.
        self._may_begin = bool(channel) and name.split()[:1] != ["final"] and not is_call
        self.closer = END if self._may_begin else ""
        return self._take(len(header), False) if is_call else self._take_marker(len(header))

    def _take(self, length: int, reasoning: bool) -> list[Piece]:
        return [replace(piece, reasoning=reasoning) for piece in self._held.take(length)]

    def _take_marker(self, length: int) -> list[Piece]:
        return [replace(piece, text="" if self._bare else piece.text) for piece in self._take(length, True)]


def mark_reasoning(pieces: Iterable[Piece], begun: str = "") -> Generator[Piece]:
    """Yield `pieces` with reasoning marked. `begun`: the opening marker at the prompt's end, or "".

    If `pieces` raises KeyboardInterrupt or LacliError, the held pieces are yielded first.
    """
    splitter = ReasoningSplitter(begun)
    try:
        for piece in pieces:
            yield from splitter.feed([piece])
    except (KeyboardInterrupt, LacliError):
        yield from splitter.finish()
        raise
    yield from splitter.finish()


def answer_of(text: str) -> str:
    """Return a generated text without its reasoning."""
    reasoning, answer = _split(text)
    return answer.lstrip() if reasoning else answer


def closed(text: str) -> str:
    """Return a generated text with a closing marker if its last reasoning block has none: templates expect one."""
    splitter = ReasoningSplitter()
    splitter.feed([Piece(text)])
    return f"{text}\n{splitter.closer}\n\n" if splitter.closer else text


def begun_reasoning(rendered: str) -> str:
    """Return the opening marker at a prompt's end, with the space after it; "" if the prompt opens no block."""
    bare, openers = rendered.rstrip(), (*PAIRS, f"{CHANNEL}analysis{MESSAGE}")
    opener = next((opener for opener in openers if bare.endswith(opener)), "")
    return rendered[len(bare) - len(opener) :] if opener else ""


def begun_closer(rendered: str) -> str:
    """Return the marker that closes the reasoning block opened at a prompt's end, or "" if the prompt opens none."""
    return ReasoningSplitter(begun_reasoning(rendered)).closer


def markers_in(template_source: str) -> list[str]:
    """Return the markers of reasoning that a chat template's source contains."""
    markers = [marker for pair in PAIRS.items() for marker in pair if marker in template_source]
    return [*markers, START, CHANNEL, MESSAGE, END] if CHANNEL in template_source else markers


def as_history(message: Mapping[str, Any], template_source: str) -> dict[str, str]:
    """Return an earlier answer with its reasoning, as the message that a chat template expects.

    `message` has the reasoning in its content, in `reasoning_content` or in `reasoning`. Most templates drop closed
    reasoning themselves. GPT-OSS and templates that read only `reasoning_content` expect a separate field.
    """
    content, apart = message["content"], message.get("reasoning_content") or message.get("reasoning") or ""
    if apart and re.search(r"""[.'"]reasoning(_content)?\b""", template_source):
        return {"role": "assistant", "content": content, "reasoning_content": apart, "reasoning": apart}
    opener = next((each for each in PAIRS if PAIRS[each] in template_source), "")
    if apart and opener:
        content = closed(f"{opener}\n{apart.strip()}") + content.lstrip()
    reasoning, answer = _split(content)
    if CHANNEL in template_source and (reasoning := apart or reasoning):
        return {"role": "assistant", "content": answer, "thinking": FRAME.sub("\n", reasoning).strip()}
    # A template that splits the content at </think> separates the reasoning itself.
    splits = re.search(r"""split\(\s*['"]</think>""", template_source)
    if reasoning and "reasoning_content" in template_source and not splits:
        for marker in (*PAIRS, *PAIRS.values()):
            reasoning = reasoning.replace(marker, "")
        return {"role": "assistant", "content": answer.lstrip(), "reasoning_content": reasoning.strip()}
    return {"role": "assistant", "content": closed(content) if opener else content}


def _split(text: str) -> tuple[str, str]:
    """Return the reasoning in a text, with its markers, and the rest."""
    pieces = list(mark_reasoning([Piece(text)]))
    reasoning, answer = ("".join(p.text for p in pieces if p.reasoning is wanted) for wanted in (True, False))
    return reasoning, answer
