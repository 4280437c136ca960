"""Grammars that llama.cpp would not return from, and those beside them that it follows."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacli.text.gbnf import DEEPEST, MOST_REPEATS, MOST_RULES, danger, integers, literal


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ('root ::= x{0,200}\nx ::= ("b"|"c"){0,200}', "rule root repeats"),
        ('root ::= "a" (("b"* ){0,200}) "c"', "rule root repeats"),
        ("root ::= x{200}\nx ::= y z\ny ::= [a-z]?\nz ::= [0-9] | ", "rule root repeats"),
        ("root ::= x{0,4}\nx ::= y{3}\ny ::= [a-z]*", "rule root repeats"),
        ('root ::= "(" root{0,3} ")" | ""', "rule root repeats"),
        ('root ::= (# no character\n""){0,9}', "rule root repeats"),
        ('root ::= "a"{3,2}', "at least 3 and at most 2"),
        ("root ::= " + "(" * (DEEPEST + 1), "parentheses"),
        ("".join(f"r{place} ::= [a]\n" for place in range(MOST_RULES + 1)), "rules"),
    ],
)
def test_what_llama_cpp_does_not_return_from_is_named(grammar: str, words: str) -> None:
    assert words in danger(grammar)


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= ("b"|"c"){0,200}',
        "root ::= x{0,200}\nx ::= [a-z]{1,200}",
        f"root ::= ([a-z]*){{0,{MOST_REPEATS}}}",
        'root ::= x{0,200}\nx ::= ( | "a") (y{0,8} "b")\ny ::= [a-z]?',
        'root ::= "x{0,200}" [(]{0,200} # ("a"?){0,200}',
        'root ::= "(" root ")" | ""',
        'root ::= (x? "," ){0,200}\nx ::= [0-9]{0,200} | root',
        "root ::= x{0} x{0,} x{ 2 , }\nx ::= [a]?",
        "root ::= ) ) } {2",
    ],
)
def test_what_llama_cpp_returns_from_is_left_to_it(grammar: str) -> None:
    assert danger(grammar) == ""


def as_pattern(part: str) -> str:
    """A regular expression for a part of a grammar without rules."""
    parts = re.split(r'("(?:\\.|[^"\\])*")', part)
    return "".join(
        re.escape(re.sub(r"\\(.)", r"\1", each[1:-1])) if each[:1] == '"' else each.replace(" ", "") for each in parts
    )


BOUND = st.none() | st.integers(-1200, 1200)


@given(BOUND, BOUND)
def test_a_whole_number_fits_exactly_between_its_bounds(least: int | None, most: int | None) -> None:
    if least is not None and most is not None and least > most:
        least, most = most, least
    whole = re.compile(as_pattern(integers(least, most)))
    fitting = [number for number in range(-1300, 1300) if whole.fullmatch(str(number))]
    assert fitting == [*range(-1300 if least is None else least, 1300 if most is None else most + 1)]
    assert not any(map(whole.fullmatch, ("", "-", "-0", "00", "01", "1.0")))


@given(st.text())
def test_a_literal_is_its_text(text: str) -> None:
    assert re.fullmatch(as_pattern(literal(text)), text)
