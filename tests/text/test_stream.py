"""Tokens to text: characters and stop texts that span tokens, and the tokens that a stop keeps."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacli.text.stream import TextStream
from lacli.tree import Origin


def stream_of(pieces: list[bytes], *stops: str, controls: Mapping[int, str] | None = None) -> tuple[TextStream, str]:
    """Feed the pieces in groups of up to three tokens; return the stream and all text that it gave."""
    stream = TextStream(pieces.__getitem__, stops, controls or {})
    printed = ""
    for first in range(0, len(pieces), 3):
        run = range(first, min(first + 3, len(pieces)))
        printed += "".join(piece.text for piece in stream.feed(run, [Origin.MODEL] * len(run)))
    return stream, printed + "".join(piece.text for piece in stream.finish())


EURO = "€".encode()


@pytest.mark.parametrize(
    ("pieces", "stops", "printed", "kept", "read"),
    [
        ([b"a\xffb"], [], "a\ufffdb", 1, 1),
        ([b"one", b" two STOP three", b" four"], ["STOP"], "one two ", 1, 2),
        ([b"a", EURO[:1], EURO[1:]], ["€"], "a", 1, 3),
        ([b"a", b"b"], [""], "ab", 2, 2),
    ],
    ids=["no text", "in a token", "half a character", "empty"],
)
def test_the_text_ends_before_the_first_stop(
    pieces: list[bytes], stops: list[str], printed: str, kept: int, read: int
) -> None:
    stream, text = stream_of(pieces, *stops)
    assert (text, stream.kept, stream.read) == (printed, kept, read)


@pytest.mark.parametrize(
    ("pieces", "stop", "counts"),
    [
        ([b"one", b"#", b"#", b"# two"], "###", [1, 1, 1, 1]),
        ([b"one", b" two #", b"#", b"# three"], "###", [1, 2, 2, 2]),
        ([b"a", EURO[:1], EURO[1:], b"b"], "###", [1, 1, 3, 4]),
        ([b"a", b"", b"b"], "###", [1, 2, 3]),
    ],
    ids=["over tokens", "in a token", "half a character", "no text"],
)
def test_a_token_counts_as_begun_once_a_part_of_its_text_is_out(
    pieces: list[bytes], stop: str, counts: list[int]
) -> None:
    stream, found = TextStream(pieces.__getitem__, [stop]), []
    for token in range(len(pieces)):
        stream.feed([token], [Origin.MODEL])
        found.append(stream.begun)
    assert found == counts


@pytest.mark.parametrize(
    ("stop", "printed", "kept", "read"), [("<end>", "one.two", 2, 3), ("end", "one.two three<", 4, 5)]
)
def test_a_stop_may_be_a_control_token_which_has_no_text_itself(stop: str, printed: str, kept: int, read: int) -> None:
    pieces = [b"one", b".two", b"", b" three", b"<end>"]
    stream, text = stream_of(pieces, stop, controls={2: "<end>"})
    assert (text, stream.kept, stream.read) == (printed, kept, read)


@given(st.lists(st.integers(0, 4), max_size=12), st.lists(st.text("abc", min_size=1, max_size=3), max_size=3))
def test_a_control_token_is_never_printed_hides_no_stop_and_can_be_one(tokens: list[int], stops: list[str]) -> None:
    texts, controls = ["a", "b", "c", "", ""], {3: "<x>", 4: "<y>"}
    stream = TextStream([text.encode() for text in texts].__getitem__, [*stops, "<y>"], controls)
    pieces = stream.feed(tokens, [Origin.MODEL] * len(tokens)) + stream.finish()
    shown = "".join(piece.text for piece in pieces)
    whole = "".join(texts[token] for token in tokens)
    assert whole.startswith(shown) and not any(stop in shown for stop in stops)
    assert stream.stop or (shown == whole and 4 not in tokens)


def test_a_piece_knows_which_source_drafted_its_token_and_so_do_its_halves() -> None:
    stream = TextStream([b"a", b"b#", b"c"].__getitem__, ["##"])
    pieces = stream.feed([0, 1, 2], [Origin.POOL, Origin.SUFFIX, Origin.MODEL])
    found = [(piece.text, piece.origin) for piece in pieces]
    assert found == [("a", Origin.POOL), ("b", Origin.SUFFIX), ("#", Origin.SUFFIX), ("c", Origin.MODEL)]


@given(st.text("ab#é€", max_size=30), st.lists(st.text("ab#é€", min_size=1, max_size=3), max_size=3), st.data())
def test_any_split_into_tokens_prints_the_text_up_to_the_first_completed_stop(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=12)) | {0, len(raw)})
    pieces = [raw[first:last] for first, last in zip(cuts, cuts[1:], strict=False)]
    stream, printed = stream_of(pieces, *stops)
    # A stop text is found when the token that completes it is read. If several are complete, the earliest counts.
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
