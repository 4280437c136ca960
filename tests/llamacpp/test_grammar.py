"""What is said about a bad grammar: the parser's real words on the bundled model, with the line or the rule."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lacli.errors import UsageError
from lacli.hub.names import demo_model
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.sampler import LlamaSampler
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(demo_model(), ModelSettings(gpu_layers=0, threads=1)) as model:
        yield model


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ("root = [a]", "line 1: expecting ::="),
        ('root ::= "a"\nnext ::= (("b")\n', "line 3: expecting ')'"),
        ('root ::= "a\n', "unexpected end of input"),
        ("# words at the start\n\nroot ::= [a] {2,x}", "line 3: expecting"),
        ('root ::= "a" thing', "'thing'"),
        ('start ::= "a"', "no rule named 'root'"),
        ('root ::= "a" | list\nlist ::= list "," [0-9]', "rule 'list' begins with itself"),
        ('root ::= one\none ::= ("x" | two)\ntwo ::= one "y"', "rule 'one' begins with itself"),
        ('root ::= * "a"', "line 1: expecting preceding item"),
        ("a b c", "line 1: expecting"),
    ],
)
def test_a_grammar_that_cannot_be_parsed_is_refused_in_one_line(
    model: LlamaModel, grammar: str, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError) as raised:
        LlamaSampler(model, SamplingSettings(seed=1, grammar=grammar))
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
    assert capfd.readouterr() == ("", "")


def test_a_good_grammar_is_accepted(model: LlamaModel) -> None:
    LlamaSampler(model, SamplingSettings(seed=1, grammar='root ::= "a" root | [b-z]')).close()
