"""Reasoning and answers are separated: published markers, texts in any pieces, earlier messages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacli.text.reasoning import PAIRS, ReasoningSplitter, as_history, begun_reasoning, closed, mark_reasoning
from lacli.text.stream import Piece
from lacli.text.template import as_messages
from lacli.tree import Origin
from tests.fakes.template_texts import compiled, fixture

ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>"

Parts = list[tuple[str, bool]]


def parts_of(pieces: list[Piece]) -> Parts:
    """Return texts, each with whether it is reasoning; adjacent pieces of one kind are joined."""
    parts: Parts = []
    for piece in pieces:
        if parts and parts[-1][1] == piece.reasoning:
            parts[-1] = (parts[-1][0] + piece.text, piece.reasoning)
        elif piece.text:
            parts.append((piece.text, piece.reasoning))
    return parts


def split(text: str, begun: str = "") -> Parts:
    return parts_of(list(mark_reasoning([Piece(text)], begun)))


@pytest.mark.parametrize(("opener", "closer"), PAIRS.items())
def test_reasoning_is_what_its_markers_enclose(opener: str, closer: str) -> None:
    assert split(f"{opener}\nhm\n{closer}\n\n4.") == [(f"{opener}\nhm\n{closer}", True), ("\n\n4.", False)]
    for begun in (opener, f"{opener}\n"):
        assert split(f"hm\n{closer}4.", begun) == [(f"hm\n{closer}", True), ("4.", False)]
    assert split(f"{opener}hm") == [(f"{opener}hm", True)]


@pytest.mark.parametrize("text", ["4.", "", "<", "<thin", "a <think>b</think>", "4 < 5", "`<think>`", "<thinkers>"])
def test_a_text_that_does_not_begin_with_a_block_is_all_answer(text: str) -> None:
    assert split(text) == ([(text, False)] if text else [])


def test_only_the_final_channel_is_the_answer() -> None:
    call = "<|start|>assistant<|channel|>commentary to=functions.run <|constrain|>json<|message|>{}<|end|>"
    thought = f"{ANALYSIS}hm <think> <|x|><|end|>{call}{FINAL}"
    assert split(f"{thought}4. <|channel|>") == [(thought, True), ("4. <|channel|>", False)]
    assert split("<|channel|>final<|message|>4.") == [("<|channel|>final<|message|>", True), ("4.", False)]
    assert split("<|start|>assistant<|message|>4.") == [("<|start|>assistant<|message|>", True), ("4.", False)]
    assert split(f"hm<|end|>{FINAL}4.", ANALYSIS) == [(f"hm<|end|>{FINAL}", True), ("4.", False)]
    assert split("<|channel|>finally<|message|>4.") == [("<|channel|>finally<|message|>4.", True)]


def test_an_answer_streams_without_delay_and_only_possible_markers_wait() -> None:
    splitter = ReasoningSplitter()
    assert splitter.feed([Piece("<th")]) == []
    assert splitter.feed([Piece("e", Origin.POOL)]) == [Piece("<th"), Piece("e", Origin.POOL)]
    splitter = ReasoningSplitter()
    assert splitter.feed([Piece("<think>a b</")]) == [Piece("<think>", reasoning=True), Piece("a b", reasoning=True)]
    assert splitter.finish() == [Piece("</", reasoning=True)]


FRAGMENTS = (
    "<think> </think> <thinking> </thinking> [THINK] [/THINK] <|START_THINKING|> <|END_THINKING|> <|channel|> analysis"
    " final <|message|> <|start|> <|end|> assistant a < <| </th hm,b 🦙 <|channel> <channel|>"
)
TEXTS = st.lists(st.sampled_from([*FRAGMENTS.split(), "\n", " "]), max_size=12).map("".join)


@given(text=TEXTS, cuts=st.lists(st.integers(0, 120)), begun=st.sampled_from(["", "<think>\n", ANALYSIS]))
def test_how_a_text_is_cut_into_pieces_changes_nothing(text: str, cuts: list[int], begun: str) -> None:
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [
        Piece(text[begin:end], Origin.MODEL if index % 2 else Origin.WINDOW)
        for index, (begin, end) in enumerate(zip(edges, edges[1:], strict=False))
    ]
    found = list(mark_reasoning(pieces, begun))
    assert "".join(piece.text for piece in found) == text
    assert parts_of(found) == split(text, begun)
    origins = [piece.origin for piece in pieces for _ in piece.text]
    assert [piece.origin for piece in found for _ in piece.text] == origins


def test_what_is_held_back_comes_out_when_the_stream_breaks_off() -> None:
    def broken() -> Iterator[Piece]:
        yield Piece("<thin")
        raise KeyboardInterrupt

    found: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        found.extend(piece.text for piece in mark_reasoning(broken()))
    assert found == ["<thin"]


@pytest.mark.parametrize("name", ["deepseek-r1", "qwen3", "llama3.1", "gpt-oss"])
def test_a_prompt_that_opens_a_block_is_known(name: str) -> None:
    rendered = compiled(fixture(name)).render(as_messages("What is 2+2?"))
    assert begun_reasoning(rendered) == ("<think>\n" if name == "deepseek-r1" else "")
    assert begun_reasoning(rendered + ANALYSIS) == ANALYSIS


CHANNELS = f"{ANALYSIS}hm<|end|><|start|>assistant{ANALYSIS}so<|end|>{FINAL}4."
ANSWER = "<think>\nhm\n</think>\n\n4."


BOTH = {"reasoning_content": "hm", "reasoning": "hm"}


@pytest.mark.parametrize(
    ("name", "answer", "message"),
    [
        ("qwen3", {"content": ANSWER}, {"content": ANSWER}),
        ("deepseek-r1", {"content": ANSWER}, {"content": ANSWER}),
        ("qwen3", {"content": "4."}, {"content": "4."}),
        ("reasoning-apart", {"content": ANSWER}, {"content": "4.", "reasoning_content": "hm"}),
        ("reasoning-apart", {"content": "Use </think>."}, {"content": "Use </think>."}),
        ("gpt-oss", {"content": CHANNELS}, {"content": "4.", "thinking": "hm\nso"}),
        ("gpt-oss", {"content": "4."}, {"content": "4."}),
        ("qwen3", {"content": "4.", "reasoning_content": "hm"}, {"content": "4.", **BOTH}),
        ("reasoning-apart", {"content": "4.", "reasoning": "hm"}, {"content": "4.", **BOTH}),
        ("gpt-oss", {"content": "4.", "reasoning": "hm"}, {"content": "4.", "thinking": "hm"}),
        ("deepseek-r1", {"content": "\n\n4.", "reasoning_content": "hm\n"}, {"content": ANSWER}),
        ("zephyr", {"content": "4.", "reasoning_content": "hm"}, {"content": "4."}),
    ],
)
def test_reasoning_is_given_as_the_template_reads_it(
    name: str, answer: dict[str, str], message: dict[str, str]
) -> None:
    assert as_history(answer, fixture(name)) == {"role": "assistant", **message}


@pytest.mark.parametrize(
    ("text", "begun", "reasoning"),
    [
        *((f"{opener}hm\n{closer}\n4.", "", "hm\n") for opener, closer in PAIRS.items()),
        *((f"hm{closer}\n4.", opener, "hm") for opener, closer in PAIRS.items()),
        (CHANNELS.replace("4.", "\n4."), "", "hmso"),
        (f"hm<|end|>{FINAL}\n4.", ANALYSIS, "hm"),
    ],
)
def test_bare_reasoning_has_no_marker_and_every_piece(text: str, begun: str, reasoning: str) -> None:
    splitter = ReasoningSplitter(begun, bare=True)
    pieces = [*splitter.feed(map(Piece, text)), *splitter.finish()]
    assert len(pieces) == len(text)
    assert parts_of(pieces) == [(reasoning, True), ("\n4.", False)]


def test_a_block_that_the_prompt_opened_can_be_closed() -> None:
    assert closed("<think>\nhm, well") == "<think>\nhm, well\n</think>\n\n"
    assert closed("<think>\nhm</think>4.") == "<think>\nhm</think>4."
    assert closed("4.") == "4."
    messages = as_messages("And?", "", [("What is 2+2?", closed("<think>\nhm, well"))])
    assert "hm, well" not in compiled(fixture("deepseek-r1")).render(messages)
