"""What a reasoning model thinks before it answers: where its thoughts begin and end in a text, and in a history.

Pieces and strings only. Which template is used is `template.py`'s affair, how thoughts look the terminal's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace

from lacli.errors import LacliError
from lacli.text.stream import Piece

PAIRS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "[THINK]": "[/THINK]",
    "<seed:think>": "</seed:think>",
    "<|channel>": "<channel|>",
}
"""What opens a thought and what closes it: most models, Cohere's, Mistral's, Seed-OSS and Gemma 4."""

START, CHANNEL, MESSAGE, END = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"
"""GPT-OSS's format: a header of role and channel, then the message; the channel `final` is the answer."""

OPENERS = {**{opener: (closer,) for opener, closer in PAIRS.items()}, START: (MESSAGE,), CHANNEL: (MESSAGE,)}

OPEN_AT_END = (*PAIRS, f"{CHANNEL}analysis{MESSAGE}")

FRAME = re.compile(r"((<\|start\|>[^<]*)?<\|channel\|>.*?<\|message\|>|<\|end\|>|<\|start\|>)+", re.DOTALL)
"""All of a GPT-OSS thought that is no thought."""

SPLITS = re.compile(r"""split\(\s*['"]</think>""")
"""A template that takes thoughts out of a content itself."""


class Thoughts:
    """Tells thoughts from the answer in a stream of pieces, wherever the pieces are cut; the markers are thoughts.

    begun: the beginning of a thought that the prompt ends with. A thought begins where nothing but space and other
    thoughts came before it: a model that writes about <think> in its answer does not think. Text that may be the
    beginning of a marker is held back.
    """

    def __init__(self, begun: str = "") -> None:
        self._closers: tuple[str, ...] = ()
        self._begins = True
        self._header = ""
        self._held: list[Piece] = []
        self.feed([Piece(begun)] if begun else [])

    @property
    def closer(self) -> str:
        """What would close the thought that the text so far ends in, or an empty string."""
        return self._closers[0] if self._closers else ""

    def feed(self, pieces: Iterable[Piece]) -> list[Piece]:
        """The pieces whose part is known now, cut at its borders; thoughts are marked."""
        self._held += pieces
        known: list[Piece] = []
        while part := self._advance("".join(piece.text for piece in self._held)):
            known += part
        return known

    def finish(self) -> list[Piece]:
        """What was held back, once nothing more comes."""
        return self._take(sum(len(piece.text) for piece in self._held), bool(self._closers))

    def _advance(self, held: str) -> list[Piece]:
        """The next part of the held text that is known, or nothing."""
        if self._closers:
            return self._inside(held)
        if self._begins:
            if blank := len(held) - len(held.lstrip()):
                return self._take(blank, False)
            for opener, closers in OPENERS.items():
                if held.startswith(opener):
                    self._closers, self._header = closers, opener
                    return self._take(len(opener), True)
            if any(opener.startswith(held) for opener in OPENERS):
                return []
            self._begins = False
        return self._take(len(held), False)

    def _inside(self, held: str) -> list[Piece]:
        found = [(at, closer) for closer in self._closers if (at := held.find(closer)) >= 0]
        if not found:
            sure = len(held) - _beginning(held, self._closers)
            self._enter_header(held[:sure])
            return self._take(sure, True)
        at, closer = min(found)
        self._enter_header(held[:at])
        self._closers = ()
        if closer == MESSAGE:
            self._begins = not _is_final(self._header)
            self._closers = (END,) if self._begins else ()
        return self._take(at + len(closer), True)

    def _enter_header(self, text: str) -> None:
        if MESSAGE in self._closers:
            self._header += text

    def _take(self, characters: int, thought: bool) -> list[Piece]:
        taken: list[Piece] = []
        while characters:
            piece = self._held.pop(0)
            if len(piece.text) > characters:
                self._held.insert(0, replace(piece, text=piece.text[characters:]))
                piece = replace(piece, text=piece.text[:characters])
            characters -= len(piece.text)
            taken.append(replace(piece, thought=thought))
        return taken


def with_thoughts(pieces: Iterable[Piece], begun: str = "") -> Generator[Piece]:
    """A stream of pieces with its thoughts marked; what was held back comes out even when the stream breaks off."""
    thoughts = Thoughts(begun)
    try:
        for piece in pieces:
            yield from thoughts.feed([piece])
    except (KeyboardInterrupt, LacliError):
        yield from thoughts.finish()
        raise
    yield from thoughts.finish()


def answer_of(text: str) -> str:
    """A generated text without its thoughts, which begin with their markers."""
    thought, answer = _parts(text)
    return answer.lstrip() if thought else answer


def closed(text: str) -> str:
    """A generated text whose last thought is closed where it was broken off, so that a template can tell it."""
    thoughts = Thoughts()
    thoughts.feed([Piece(text)])
    return f"{text}\n{thoughts.closer}\n\n" if thoughts.closer else text


def begun_thought(rendered: str) -> str:
    """The beginning of a thought that a prompt ends with, the space behind it included; empty where it opens none."""
    bare = rendered.rstrip()
    opener = next((opener for opener in OPEN_AT_END if bare.endswith(opener)), "")
    return rendered[len(bare) - len(opener) :] if opener else ""


def markers_of(template_source: str) -> tuple[str, ...]:
    """The markers that a template knows: where they are tokens without a text, they have to be shown to be found."""
    known = [marker for pair in PAIRS.items() for marker in pair if marker in template_source]
    return (*known, START, CHANNEL, MESSAGE, END) if CHANNEL in template_source else tuple(known)


def marker_tokens(template_source: str, tokenize: Callable[[str], Sequence[int]]) -> frozenset[int]:
    """The tokens of a template's markers that are one token each. tokenize: a text without BOS."""
    tokenized = [tokenize(marker) for marker in markers_of(template_source)]
    return frozenset(tokens[0] for tokens in tokenized if len(tokens) == 1)


def as_history(content: str, template_source: str) -> dict[str, str]:
    """An earlier answer, as it was generated after its thought was begun, as the message that a template wants.

    Templates that know thoughts drop them from the content themselves, once they are closed. GPT-OSS's, and those that
    only read `reasoning_content`, want them apart.
    """
    thought, answer = _parts(content)
    if thought and CHANNEL in template_source:
        return {"role": "assistant", "content": answer, "thinking": FRAME.sub("\n", thought).strip()}
    if thought and "reasoning_content" in template_source and not SPLITS.search(template_source):
        return {"role": "assistant", "content": answer.lstrip(), "reasoning_content": _bare(thought)}
    knows = any(closer in template_source for closer in PAIRS.values())
    return {"role": "assistant", "content": closed(content) if knows else content}


def _parts(text: str) -> tuple[str, str]:
    """All that is thought in a text, markers included, and all that is not."""
    pieces = list(with_thoughts([Piece(text)]))
    thought = "".join(piece.text for piece in pieces if piece.thought)
    return thought, "".join(piece.text for piece in pieces if not piece.thought)


def _bare(thought: str) -> str:
    for pair in PAIRS.items():
        for marker in pair:
            thought = thought.replace(marker, "")
    return thought.strip()


def _is_final(header: str) -> bool:
    """Whether a GPT-OSS header begins the answer; one without a channel does."""
    _, channel, name = header.rpartition(CHANNEL)
    return not channel or name.split()[:1] == ["final"]


def _beginning(held: str, markers: Sequence[str]) -> int:
    """Characters at the end of the held text that one of the markers may begin with."""
    lengths = range(min(len(held), max(map(len, markers)) - 1), 0, -1)
    return next((length for length in lengths if any(m.startswith(held[-length:]) for m in markers)), 0)
