"""JSON schemas: keywords that are named as not enforced, and schemas that are refused in one line."""

from __future__ import annotations

import json
import re

import pytest

from lacli.errors import UsageError
from lacli.text.json_schema import grammar_of

TEXT = {"type": "string"}


@pytest.mark.parametrize("name", ["uniqueItems", "not", "if", "propertyNames"])
def test_a_keyword_that_is_not_enforced_is_named(name: str) -> None:
    schema = {"type": "array", "items": {"type": "object", name: {"type": "integer"}}}
    (sentence,) = grammar_of(json.dumps(schema))[1]
    assert sentence.startswith("the JSON schema: not followed: ") and name in sentence
    noted = {"title": "t", "description": "d", "default": 1, "examples": [1], "$comment": "c", **TEXT}
    assert grammar_of(json.dumps(noted))[1] == []


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ('{"type": "object",\n "a" 1}', "Expecting ':' delimiter: line 2 column 6"),
        ('{"a":' * 100_000, "is not JSON"),
        ('{"type": "integer", "minimum": 5, "maximum": 3}', "minimum (5) is greater than maximum (3)"),
        ('{"pattern": "^(?=a)$", "type": "string"}', "look-ahead"),
        (json.dumps({"type": "a\u2028\x1b" * 400}), "Invalid type"),
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused_in_one_line(schema: str, words: str) -> None:
    with pytest.raises(UsageError) as raised:
        grammar_of(schema)
    assert words in str(raised.value) and raised.value.hint
    assert len(str(raised.value).splitlines()) == 1 and len(str(raised.value)) < 400 and "\x1b" not in str(raised.value)


def test_between_tokens_is_at_most_a_space_or_a_line_break_with_32_spaces() -> None:
    (written,) = re.findall(r'"whitespace_pattern": ("[^"]*")', grammar_of(json.dumps(TEXT))[0])
    longest = "\n" + " " * 32
    assert all(re.fullmatch(json.loads(written), space) for space in (" ", "\n", longest))
    assert not any(re.fullmatch(json.loads(written), space) for space in ("  ", " \n", "\n\n", f"{longest} "))
