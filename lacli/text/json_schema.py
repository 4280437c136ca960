"""JSON schemas as grammars of llguidance, which says what of a schema it does not enforce."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lacli.errors import UsageError
from lacli.text.format import printable

HEAD = "%llguidance {}\n"
"""The first line of llguidance's grammars; a grammar without it is GBNF."""

OPTIONS = {"lenient": True, "whitespace_pattern": r"[ \n\t]{0,20}"}
"""llguidance names unknown keywords instead of refusing them, and ends runs of space, which small models repeat."""

OPEN = {"additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref"}
"""Keywords next to `properties` that say what else an object has."""

LITERAL = ("const", "enum")
"""Keywords whose values are no schemas."""

FAILED = "failed to compile JSON schema: "


def grammar_of(text: str) -> tuple[str, list[str]]:
    """Return the grammar for a JSON schema, and a sentence for each kind of keyword that it does not enforce.

    Raises UsageError, in one line, for a schema that cannot be followed.
    """
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = """give an object, '{"type": "integer"}' in a shell; -jf FILE reads one"""
        raise UsageError(f"the JSON schema is not JSON: {printable(str(error))}", hint) from error
    if not isinstance(schema, dict):
        raise UsageError("the JSON schema is not an object", """write something like {"type": "object"}""")
    try:
        return checked(f"{HEAD}start: {json_value(schema)}", "the JSON schema")
    except RecursionError as error:
        raise UsageError("the JSON schema is nested too deeply", "make it flatter") from error


def json_value(schema: Mapping[str, Any]) -> str:
    """Return the part of a grammar that is a value of a schema."""
    return f"%json {json.dumps({**_closed(schema), 'x-guidance': OPTIONS})}"


def _closed(schema: Any) -> Any:
    """Allow an object no other properties than it names, as llama.cpp does: small models would add some for ever."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {name: value if name in LITERAL else _closed(value) for name, value in schema.items()}
    is_whole = isinstance(schema.get("properties"), Mapping) and OPEN.isdisjoint(schema)
    return {**found, "additionalProperties": False} if is_whole else found


def checked(grammar: str, what: str) -> tuple[str, list[str]]:
    """Return a grammar with llguidance's warnings about it. Raises UsageError, which names it as `what`."""
    from llguidance import LLMatcher

    failed, said = LLMatcher.validate_grammar_with_warnings(grammar)
    if failed:
        # Behind the reason stands the whole grammar, from its first line's number on.
        reason = said[0].rpartition(FAILED)[2].split("\n   1 | ")[0]
        raise UsageError(f"{what} cannot be followed: {' '.join(printable(reason).split())[:200]}", "change it there")
    return grammar, [f"{what}: {printable(each)}" for each in said]
