"""The store source: texts kept between runs where the user asks for it, and guesses of what followed in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lacli.auto.acceptance import AcceptanceEstimate
from lacli.auto.planner import Guess
from lacli.auto.suffix import LENGTHS, MAX_COMPARED, NO_MATCH, MatchSource, kind_of
from lacli.llamacpp.gguf import GgufFile, parts
from lacli.modes import common_prefix
from lacli.settings import DecodeSettings
from lacli.text.records import Records, Unusable, model_identity
from lacli.tree import Origin

Tokens = npt.NDArray[np.int32]

MIN_RUN = 4
"""Tokens of a match at least."""

MAX_PROBES = 64
"""Occurrences of a run that are compared, the most recent ones."""

EXPECTED = (0.0, 0.0, 0.3, 0.6, 0.75, 0.75, 0.8, 0.85, 0.9, 0.95)
"""How often the token after a match came true at first, by `kind_of` its length; shorter than MIN_RUN is no match.

Measured on 40 answers of the 7M model, each with the texts of all others; repeated and related ones do better.
"""

GAP = -1
"""Fills the space between two texts, which no comparison may cross."""

NO_TOKEN = -2
"""Stands before the beginning of a short text, and matches nothing."""

HASH_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
"""Odd numbers without a pattern, one for each token of a run: a multiplicative hash."""

HASH_MASK = (1 << 64) - 1

MAX_TOKENS = 1_000_000
"""Tokens that are kept of a model, 4 MB; when there are more, the newest half stays. A million are indexed in 0.1 s."""


class PastTexts:
    """Kept texts with an index of their runs of MIN_RUN tokens; it never changes, and serves many sources.

    `tokens`: of all texts, with gaps between them.
    """

    def __init__(self, texts: Sequence[Tokens]) -> None:
        gap = np.full(MAX_COMPARED, GAP, np.int32)
        self.tokens = np.concatenate([gap, *(part for text in texts for part in (text, gap))])
        ends = np.arange(MAX_COMPARED, len(self.tokens))
        ends = ends[np.logical_and.reduce([self.tokens[ends - back] != GAP for back in range(MIN_RUN + 1)])]
        hashes = np.zeros(len(ends), np.uint64)
        for back, factor in enumerate(HASH_FACTORS, start=1):
            hashes += self.tokens[ends - back].astype(np.uint64) * np.uint64(factor)
        # A hash and, in its lowest bits, where its run ends: one array to sort, with the oldest of equal runs first.
        self._places = (1 << len(self.tokens).bit_length()) - 1
        hashes &= np.uint64(HASH_MASK ^ self._places)
        hashes |= ends.astype(np.uint64)
        hashes.sort()
        self._runs = hashes

    def longest(self, text: Sequence[int], length: int) -> tuple[int, int]:
        """Return where the longest match of the end of `text[:length]` goes on, and its length.

        The most recent of the longest ones, NO_MATCH if none has MIN_RUN tokens.
        """
        if length < MIN_RUN:
            return NO_MATCH
        run = text[length - MIN_RUN : length]
        hashed = sum(token * factor for token, factor in zip(reversed(run), HASH_FACTORS, strict=True)) & HASH_MASK
        first = np.uint64(hashed & ~self._places)
        begin = int(self._runs.searchsorted(first))
        if begin == len(self._runs) or int(self._runs[begin]) & ~self._places != int(first):
            return NO_MATCH
        end = int(self._runs.searchsorted(np.uint64(hashed | self._places), "right"))
        found = (self._runs[max(begin, end - MAX_PROBES) : end] & np.uint64(self._places)).astype(np.intp)
        return self._best(found[::-1], text[max(length - MAX_COMPARED, 0) : length])

    def _best(self, ends: npt.NDArray[np.intp], tail: Sequence[int]) -> tuple[int, int]:
        """Return the longest match with a text's tail, the first of several, as `longest` does."""
        wanted = np.full(MAX_COMPARED + 1, NO_TOKEN, np.int32)
        wanted[: len(tail)] = tail[::-1]
        # The last column differs always, and so ends every match.
        same = self.tokens[ends[:, None] - np.arange(1, MAX_COMPARED + 2)] == wanted
        lengths = same.argmin(axis=1)
        best = int(lengths.argmax())
        return (int(ends[best]), int(lengths[best])) if lengths[best] >= MIN_RUN else NO_MATCH


class PastTextSource(MatchSource):
    """Guesses from kept texts.

    >>> source = PastTextSource(PastTexts([np.array([1, 2, 3, 4, 5, 6], np.int32)]))
    >>> source.begin([9, 1, 2, 3, 4])
    >>> source.first([9, 1, 2, 3, 4])[0].token
    5
    """

    origin = Origin.STORE

    def __init__(self, texts: PastTexts, acceptance: AcceptanceEstimate | None = None) -> None:
        super().__init__(acceptance or AcceptanceEstimate(EXPECTED))
        self._texts = texts

    def truncate(self, text: Sequence[int], length: int) -> None:
        del self._matches[max(length, 0) + 1 :]

    def continuation(self, length: int) -> list[int]:
        place = self.match[0]
        tokens: list[int] = self._texts.tokens[place : place + length].tolist()
        return tokens[: tokens.index(GAP)] if GAP in tokens else tokens

    def available(self, most: int) -> int:
        return len(self.continuation(most))

    def first(self, text: Sequence[int]) -> list[Guess]:
        return self._guess(*self.match)

    def after(self, guess: Guess) -> list[Guess]:
        return self._guess(*divmod(guess.place, LENGTHS))

    def _guess(self, place: int, length: int) -> list[Guess]:
        token = int(self._texts.tokens[place])
        return [] if token == GAP else [self._guess_at(place, token, length)]

    def _follow(self, text: Sequence[int], *, scored: bool) -> None:
        matches, tokens = self._matches, self._texts.tokens
        for known in range(len(matches), len(text) + 1):
            place, length = matches[-1]
            hit = tokens[place] == text[known - 1]
            if scored and length:
                self.acceptance.record(kind_of(length), bool(hit))
            goes_on = hit and tokens[place + 1] != GAP
            matches.append((place + 1, length + 1) if goes_on else self._texts.longest(text, known))


class TextStore:
    """The kept texts of one model; several processes may add to them.

    `texts`: those that were there when it was opened, the oldest first. `notes`: sentences about trouble with them.
    """

    def __init__(self, path: Path, model: str, vocabulary: int, max_tokens: int = MAX_TOKENS) -> None:
        """Read the texts of `model` from the file at `path`; ids of `vocabulary` or more are no text."""
        self.notes: list[str] = []
        self._records = Records(path, self.notes.append)
        self._model = model
        self._max_tokens = max_tokens
        self._last: Sequence[int] = ()
        self._failed = False
        try:
            found = self._records.texts(model, 4 * max_tokens)
        except Unusable as error:
            found, self._failed = [], not self.notes
            if self._failed:
                self.notes.append(f"the texts in {path} cannot be used: {error}")
        texts = (np.frombuffer(tokens[: len(tokens) // 4 * 4], "<i4") for tokens in found)
        self.texts = [text for text in texts if len(text) and text.min() >= 0 and text.max() < vocabulary]

    def add(self, tokens: Sequence[int]) -> str:
        """Keep a text; return why that is impossible, once, otherwise ''.

        Of a text that begins as the one added before it, as in a conversation, only the rest is added.
        """
        new = np.array(tokens[common_prefix(self._last, tokens) :], "<i4")[-(self._max_tokens // 2) :]
        self._last = tokens
        if self._failed or not len(new):
            return ""
        try:
            self._records.add_text(self._model, new.tobytes(), 4 * self._max_tokens)
        except Unusable as error:
            self._failed = True
            return f"this text is not kept in {self._records.path}: {error}"
        return ""


def text_key(path: Path) -> tuple[str, int]:
    """Return what the texts of a model file are kept under, and its vocabulary's size. Raises ModelLoadError."""
    with GgufFile(parts(path)[0]) as file:
        pieces = file.texts("tokenizer.ggml.tokens")
    lengths = np.array([len(piece) for piece in pieces], "<i4").tobytes()
    key = {**model_identity(path), "pieces": sha256(lengths + b"".join(pieces)).hexdigest()}
    return json.dumps(key, sort_keys=True), len(pieces)


def open_texts(
    path: Path, settings: DecodeSettings, state: Path | None, *, changing: bool = False
) -> tuple[TextStore | None, list[str]]:
    """Return a model's kept texts if `state`, their file, is given and they are used, and sentences about them.

    `changing`: the settings may change, as in a chat, so that the texts are opened in any case.
    """
    if state is None:
        return None, []
    unused = ""
    if settings.mode != "auto":
        unused = f"in mode {settings.mode}; --mode auto uses it"
    elif "store" not in settings.sources:
        unused = "where --sources leaves store out"
    if unused and not changing:
        return None, [f"--store has no effect {unused}"]
    store = TextStore(state, *text_key(path))
    said = [f"--store keeps what is said, and nothing is guessed from it {unused}"] if unused else []
    return store, [*store.notes, *said]
