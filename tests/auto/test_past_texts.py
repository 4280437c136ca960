"""Texts kept between runs: what is guessed from them, what cutting a text leaves of it, what is kept for whom."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lacli.auto import past_texts
from lacli.auto.acceptance import AcceptanceEstimate
from lacli.auto.past_texts import EXPECTED, MIN_RUN, PastTexts, PastTextSource, TextStore, open_texts, text_key
from lacli.auto.suffix import KIND_OF_LENGTH, MAX_COMPARED, kind_of
from lacli.errors import ModelLoadError
from lacli.settings import DecodeSettings
from lacli.text.records import HASHED, NAME, Unusable
from tests.fakes.recorded_acceptance import RecordedAcceptance
from tests.loading import STDLIB_7M
from tests.session.test_reuse import ctrl_c_at_line

few = st.lists(st.integers(0, 2), max_size=20)
several = st.lists(few, max_size=3)


def source_of(*texts: Sequence[int], acceptance: AcceptanceEstimate | None = None) -> PastTextSource:
    return PastTextSource(PastTexts([np.array(text, np.int32) for text in texts]), acceptance)


def drafted(source: PastTextSource, text: Sequence[int], most: int = 100) -> list[int]:
    """The tokens of the source's first guess and of those that follow it."""
    guesses = source.first(text)
    tokens: list[int] = []
    while guesses and len(tokens) < most:
        tokens.append(guesses[0].token)
        guesses = source.after(guesses[0])
    return tokens


def expected(texts: Sequence[Sequence[int]], text: Sequence[int]) -> list[int]:
    """What follows the longest match, the latest of the longest ones, by definition."""
    found: tuple[int, list[int]] = (0, [])
    for one in texts:
        for end in range(1, len(one)):
            length = 0
            while length < min(end, len(text)) and one[end - 1 - length] == text[-1 - length]:
                length += 1
            if length >= max(MIN_RUN, found[0]):
                found = (length, list(one[end:]))
    return found[1]


@given(several, few)
def test_what_followed_the_longest_match_is_drafted_the_most_recent_first(
    texts: list[list[int]], text: list[int]
) -> None:
    source = source_of(*texts)
    for length in range(len(text) + 1):
        source.extend(text[:length])
        wanted = expected(texts, text[:length])
        assert drafted(source, text[:length]) == wanted
        assert source.continuation(3) == wanted[:3] and source.available(2) == len(wanted[:2])


@given(several, few, few, st.integers(0, 20))
@settings(max_examples=60)
def test_truncation_at_every_length_equals_a_rebuild(
    texts: list[list[int]], text: list[int], more: list[int], length: int
) -> None:
    source, fresh = source_of(*texts), source_of(*texts)
    source.begin(text)
    source.truncate(text, length)
    again = [*text[:length], *more]
    source.extend(again)
    fresh.begin(again)
    assert source.match == fresh.match and drafted(source, again) == drafted(fresh, again)
    for shorter in range(len(again), -1, -1):
        source.truncate(again, shorter)
        fresh = source_of(*texts)
        fresh.begin(again[:shorter])
        assert source.match == fresh.match


RISING = list(range(1, 60))


@pytest.mark.parametrize(
    ("texts", "text", "draft"),
    [
        # A longer match goes before a later one.
        (([5, 1, 2, 3, 4, 7, 7], [1, 2, 3, 4, 8]), [5, 1, 2, 3, 4], [7, 7]),
        (([5, 1, 2, 3, 4, 7, 7], [1, 2, 3, 4, 8]), [6, 1, 2, 3, 4], [8]),
        # Three tokens are no match, and no match goes from one text into the next.
        (([1, 2, 3], [4, 5, 6, 7]), [9, 1, 2, 3], []),
        (([1, 2, 3], [4, 5, 6, 7]), [1, 2, 3, 4], []),
        (([1, 2, 3], [4, 5, 6, 7]), [4, 5, 6, 7], []),
        (([], [1, 2]), [1, 2, 3, 4, 5], []),
        ((), [1, 2, 3, 4, 5], []),
        # Of many occurrences the latest one.
        ([[1, 2, 3, 4, token] for token in range(5, 300)], [1, 2, 3, 4], [299]),
        # A match longer than what is compared.
        ((RISING, [*RISING[:40], 1]), RISING[:50], RISING[50:]),
    ],
)
def test_of_several_matches_the_best_is_followed(
    texts: Sequence[Sequence[int]], text: list[int], draft: list[int]
) -> None:
    source = source_of(*texts)
    source.begin(text)
    assert drafted(source, text) == draft and bool(source.match[1]) == bool(draft)
    assert source.match[1] <= MAX_COMPARED or len(text) > MAX_COMPARED


def test_runs_with_the_same_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_texts, "HASH_FACTORS", (0, 0, 0, 0))
    source = source_of([1, 2, 3, 4, 5], [6, 7, 8, 9, 10])
    for text, draft in (([1, 2, 3, 4], [5]), ([6, 7, 8, 9], [10]), ([1, 2, 3, 9], [])):
        source.begin(text)
        assert drafted(source, text) == draft
        source.truncate(text, 0)


def test_guesses_are_believed_by_what_came_of_matches_as_long_and_a_draft_grows_surer() -> None:
    acceptance = RecordedAcceptance(EXPECTED)
    source = source_of(RISING, acceptance=acceptance)
    source.begin([1, 2, 3, 4])
    (guess,) = source.first([1, 2, 3, 4])
    for length in range(4, 50):
        assert guess.probability == acceptance.probability[kind_of(length)]
        (guess,) = source.after(guess)
    source.extend([1, 2, 3, 4, 5, 6])
    source.extend([1, 2, 3, 4, 5, 6, 60, 61])
    assert acceptance.seen == [(kind_of(4), True), (kind_of(5), True), (kind_of(6), False)]
    source = source_of(RISING, acceptance=acceptance)
    source.begin(RISING[:49])
    assert len(acceptance.seen) == 3
    source.extend(RISING[:50])
    assert acceptance.seen[3:] == [(KIND_OF_LENGTH[-1], True)]


def test_an_interrupt_before_any_line_spoils_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.session.test_reuse.WATCHED", ("auto/past_texts", "auto/acceptance"))
    known, text = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 8], [3, 1, 2, 3, 4, 5, 6, 9, 1, 2, 3, 4]
    for line in count(1):
        source = source_of(known, known[2:])
        source.begin(text[:3])
        with suppress(KeyboardInterrupt), ctrl_c_at_line(line) as lines:
            source.extend(text)
            source.truncate(text, 6)
            source.extend([*text[:6], 7])
        for now in (text, [*text[:6], 7]):
            source.truncate(now, 5)
            source.extend(now)
            fresh = source_of(known, known[2:])
            fresh.begin(now)
            assert source.match == fresh.match, line
        if not lines.reached:
            assert line > 20
            return


VOCABULARY = 1000


def opened(path: Path, model: str = "toy", **more: int) -> TextStore:
    """A store with which nothing is wrong."""
    store = TextStore(path, model, VOCABULARY, **more)
    assert store.notes == []
    return store


def kept(path: Path, model: str = "toy") -> list[list[int]]:
    return [text.tolist() for text in opened(path, model).texts]


def test_what_is_added_comes_back_for_this_model_and_of_a_conversation_only_what_is_new(tmp_path: Path) -> None:
    path = tmp_path / NAME
    store = opened(path)
    for turn in ([1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [1, 2, 6], [], [1, 2, 3]):
        assert store.add(turn) == ""
    assert store.texts == [] and kept(path) == [[1, 2, 3], [4, 5], [6]] and kept(path, "other") == []


def test_of_a_text_that_is_too_long_the_end_is_kept(tmp_path: Path) -> None:
    store = opened(tmp_path / NAME, max_tokens=100)
    store.add([1, 2, 3])
    store.add(list(range(500)))
    assert kept(tmp_path / NAME) == [[1, 2, 3], list(range(450, 500))]
    store.add([7] * 50)
    assert kept(tmp_path / NAME) == [[7] * 50]


@pytest.mark.parametrize("wrong", [1000, -1])
def test_ids_that_the_vocabulary_does_not_have_are_no_text(tmp_path: Path, wrong: int) -> None:
    store = opened(tmp_path / NAME)
    for text in ([1], [5, wrong], [2]):
        store.add(text)
    assert kept(tmp_path / NAME) == [[1], [2]]


def test_a_place_that_cannot_be_is_a_reason_once_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = TextStore(tmp_path / "file" / NAME, "toy", VOCABULARY)
    assert store.notes == [f"the texts in {tmp_path / 'file' / NAME} cannot be used: Not a directory"]
    assert store.texts == [] and store.add([1, 2]) == store.add([1, 2, 3]) == ""


def test_a_disk_that_takes_nothing_is_a_reason_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path / NAME)

    def refuse(*_: object) -> None:
        raise Unusable("database or disk is full")

    monkeypatch.setattr(store._records, "add_text", refuse)
    assert store.add([1]) == f"this text is not kept in {tmp_path / NAME}: database or disk is full"
    assert store.add([2]) == ""


def test_a_damaged_file_is_set_aside_with_one_sentence_and_the_next_text_is_kept(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"no database" * 99)
    store = TextStore(tmp_path / NAME, "toy", VOCABULARY)
    assert len(store.notes) == 1 and "is damaged; it is set aside" in store.notes[0]
    assert store.add([1, 2]) == "" and kept(tmp_path / NAME) == [[1, 2]]


def test_the_key_is_the_models_and_its_vocabularys(tmp_path: Path) -> None:
    model = STDLIB_7M
    key, vocabulary = text_key(model)
    other = tmp_path / model.name
    content = bytearray(model.read_bytes())
    other.write_bytes(content)
    assert vocabulary == 4096 and text_key(other) == (key, vocabulary)
    content[content.index("Ġreturn".encode(), HASHED // 99) + 2] = ord("x")
    content[-HASHED // 2] ^= 1
    other.write_bytes(content)
    assert text_key(other)[0] != key
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelLoadError, match="model.gguf"):
        text_key(tmp_path / "model.gguf")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (DecodeSettings(mode="lookup"), "in mode lookup; --mode auto uses it"),
        (DecodeSettings(mode="auto", sources=("pool",)), "where --sources leaves store out"),
    ],
)
def test_texts_are_opened_where_they_are_asked_for_and_used_or_may_be_used_later(
    tmp_path: Path, settings: DecodeSettings, why: str
) -> None:
    path, auto = tmp_path / NAME, DecodeSettings(mode="auto")
    assert open_texts(tmp_path / "no.gguf", auto, None) == (None, [])
    assert open_texts(tmp_path / "no.gguf", settings, path) == (None, [f"--store has no effect {why}"])
    store, notes = open_texts(STDLIB_7M, settings, path, changing=True)
    assert notes == [f"--store keeps what is said, and nothing is guessed from it {why}"]
    assert store and store.add([1, 2, 3]) == ""
    store, notes = open_texts(STDLIB_7M, auto, path)
    assert store and [text.tolist() for text in store.texts] == [[1, 2, 3]] and notes == []
