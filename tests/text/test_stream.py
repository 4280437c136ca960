"""Tokens to text: characters over tokens, stop strings over tokens, what a stop keeps."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacli.text.stream import TextStream
from lacli.tree import Origin


def stream_of(pieces: list[bytes], *stops: str, controls: Mapping[int, str] | None = None) -> tuple[TextStream, str]:
    """Feed the pieces in runs of up to three tokens and give the stream and all the text it printed."""
    stream = TextStream(pieces.__getitem__, stops, controls or {})
    printed = ""
    for first in range(0, len(pieces), 3):
        run = range(first, min(first + 3, len(pieces)))
        printed += "".join(piece.text for piece in stream.feed(run, [Origin.MODEL] * len(run)))
    return stream, printed + "".join(piece.text for piece in stream.finish())


def test_a_character_split_over_tokens_comes_out_whole() -> None:
    euro = "€".encode()
    stream = TextStream([euro[:1], euro[1:2], euro[2:]].__getitem__)
    texts = [[piece.text for piece in stream.feed([token], [Origin.MODEL])] for token in range(3)]
    assert texts == [[], [], ["€"]]


def test_half_a_character_at_the_end_is_dropped() -> None:
    _, text = stream_of([b"ab", "é".encode()[:1]])
    assert text == "ab"


def test_bytes_that_are_no_text_become_replacement_characters() -> None:
    _, text = stream_of([b"a\xffb"])
    assert text == "a\ufffdb"


def test_a_stop_inside_a_token_ends_the_text_before_it() -> None:
    stream, text = stream_of([b"one", b" two STOP three", b" four"], "STOP")
    assert text == "one two "
    assert stream.stopped
    assert (stream.kept, stream.read) == (1, 2)


def test_a_stop_over_several_tokens_is_found_and_nothing_of_it_printed() -> None:
    stream, text = stream_of([b"one", b"#", b"#", b"# two"], "###")
    assert text == "one"
    assert (stream.kept, stream.read) == (1, 4)


def test_what_looks_like_a_stop_and_is_none_is_printed_in_the_end() -> None:
    _, text = stream_of([b"a##", b"b##"], "###")
    assert text == "a##b##"


def test_the_earliest_of_several_stops_wins() -> None:
    _, text = stream_of([b"x B A"], "A", "B")
    assert text == "x "


def test_a_stop_character_split_over_tokens_keeps_neither_half() -> None:
    euro = "€".encode()
    stream, text = stream_of([b"a", euro[:1], euro[1:]], "€")
    assert text == "a"
    assert (stream.kept, stream.read) == (1, 3)


def test_an_empty_stop_string_stops_nothing() -> None:
    stream, text = stream_of([b"a", b"b"], "")
    assert (text, stream.stopped) == ("ab", False)


@pytest.mark.parametrize(
    ("stop", "printed", "kept", "read"),
    [
        ("<end>", "one.two", 2, 3),
        (".two<end>", "one", 1, 3),
        ("<end> three", "one.two", 2, 4),
        ("two<end> th", "one.", 1, 4),
        ("end", "one.two three<", 4, 5),
        ("> three", "one.two three<end>", 5, 5),
    ],
)
def test_a_stop_may_name_a_control_token_which_has_no_text_itself(
    stop: str, printed: str, kept: int, read: int
) -> None:
    pieces = [b"one", b".two", b"", b" three", b"<end>"]
    stream, text = stream_of(pieces, stop, controls={2: "<end>"})
    assert (text, stream.kept, stream.read) == (printed, kept, read)


def test_a_control_token_that_no_stop_is_completed_by_is_not_printed() -> None:
    _, text = stream_of([b"one", b"", b" two", b""], "<end> three", controls={1: "<end>", 3: "<end>"})
    assert text == "one two"


def test_a_piece_knows_where_its_token_was_guessed_and_so_do_its_halves() -> None:
    stream = TextStream([b"a", b"b#", b"c"].__getitem__, ["##"])
    pieces = stream.feed([0, 1, 2], [Origin.POOL, Origin.SUFFIX, Origin.MODEL])
    assert [(piece.text, piece.origin, piece.guessed) for piece in pieces] == [
        ("a", Origin.POOL, True),
        ("b", Origin.SUFFIX, True),
        ("#", Origin.SUFFIX, True),
        ("c", Origin.MODEL, False),
    ]


@given(st.text("ab#é€", max_size=30), st.lists(st.text("ab#é€", min_size=1, max_size=3), max_size=3), st.data())
def test_any_split_into_tokens_prints_the_text_up_to_the_first_completed_stop(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=12)) | {0, len(raw)})
    pieces = [raw[first:last] for first, last in zip(cuts, cuts[1:], strict=False)]
    stream, printed = stream_of(pieces, *stops)
    # A stop is seen once the token that completes it is read; of those seen then, the earliest begins the cut.
    expected, read = text, len(pieces)
    for count in range(len(pieces) + 1):
        so_far = b"".join(pieces[:count]).decode("utf-8", "ignore")
        begins = [so_far.find(stop) for stop in stops if stop in so_far]
        if begins:
            expected, read = so_far[: min(begins)], count
            break
    assert printed == expected
    assert stream.read == read
    kept = b"".join(pieces[: stream.kept]).decode("utf-8", "ignore")
    assert expected.startswith(kept)
