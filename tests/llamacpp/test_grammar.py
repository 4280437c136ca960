"""Schemas on the bundled model's vocabulary: the answers that they allow and those that they do not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.sampler import open_grammar
from lacli.text.json_schema import grammar_of

INTEGER, TEXT = {"type": "integer"}, {"type": "string"}
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "value": INTEGER}}


def fits(model: LlamaModel, schema: Any, text: str) -> bool:
    """Whether a text can be an answer's whole."""
    grammar = open_grammar(model, grammar_of(json.dumps(schema))[0])
    assert grammar
    for token in [*model.tokenize(text, add_special=False), model.ends[0]]:
        if not grammar.allowed([token])[0]:
            return False
        grammar.accept(token)
    return True


@pytest.mark.parametrize(
    ("schema", "inside", "outside"),
    [
        ({"enum": ["a", 1, None]}, ['"a"', "1", "null"], ['"b"', "2", "a"]),
        ({"const": 'say "hi" \\ 😀'}, [r'"say \"hi\" \\ 😀"'], ['"say hi"']),
        ({"type": "string", "maxLength": 3}, ['""', '"aé😀"'], ['"abcd"', '"a\nb"', '"', "a"]),
        ({"type": "string", "pattern": r"^\d{2}-[a-z]+$"}, ['"12-ab"'], ['"1-ab"', '"12-"']),
        ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2024-13-01"', '"today"']),
        ({"type": "integer", "minimum": 3, "exclusiveMaximum": 100}, ["3", "99"], ["2", "100", "-3", "03", "3.5"]),
        ({"type": ["string", "null"], "maxLength": 3}, ['"abc"', "null"], ['"abcd"', "1"]),
        (
            {"type": "array", "items": INTEGER, "minItems": 2, "maxItems": 3},
            ["[1, 2]", "[1,2,3]"],
            ["[1]", "[1,2,3,4]"],
        ),
        (
            {"properties": {"a": INTEGER}, "required": ["a"], "additionalProperties": False},
            ['{"a": 1}'],
            ["{}", '{"b": 1}'],
        ),
        ({"allOf": [{"properties": {"a": INTEGER}}, {"required": ["a"]}], "type": "object"}, ['{"a":1}'], ["{}"]),
        ({"$ref": "#/$defs/node", "$defs": {"node": NODE}}, ['{"next": {"next": {"value": 1}}}'], ['{"next": 1}']),
        ({"type": "object"}, ["{}", '{\n    "a": [1, {"b": null}]\n}'], ["[]", "", '{"a":' + " " * 99 + "1}"]),
        ({}, ["1", "{}", '"x"'], ["x", ""]),
    ],
    ids=str,
)
def test_an_answer_keeps_to_its_schema(small: LlamaModel, schema: Any, inside: list[str], outside: list[str]) -> None:
    assert [text for text in inside if not fits(small, schema, text)] == []
    assert [text for text in outside if fits(small, schema, text)] == []
