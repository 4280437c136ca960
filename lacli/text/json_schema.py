"""JSON schemas as grammars of llguidance, which says what of a schema it does not enforce."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Set
from typing import Any
from urllib.parse import unquote

from lacli.errors import UsageError
from lacli.text.format import printable

Schema = dict[str, Any]

HEAD = "%llguidance {}\n"
"""The first line of llguidance's grammars; a grammar without it is GBNF."""

INDENT, DEEPEST = 4, 8
"""Spaces that begin a line for each level of objects and arrays, and the most levels that are counted."""

NAMED = {"properties", "patternProperties", "additionalProperties"}
HELD = {*NAMED, "items", "prefixItems", "additionalItems"}
"""Keywords for what an object holds, and what an array holds too."""

SAME = {"allOf", "anyOf", "oneOf", "$ref"}
"""Keywords for more about the same value."""


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
    """Return the part of a grammar that is a value of a schema.

    An object has no other properties than its schema names, as in llama.cpp: small models would add some for ever.
    Between tokens is at most one space, or a line break and an indent: small models would repeat them too.
    """
    root = json.loads(json.dumps(schema))
    schemas = _reached([root], HELD | SAME, root)
    joined = {id(each) for part in schemas for each in _reached(_joined(part, root), SAME, root)}
    for part in schemas:
        names, required = part.get("properties"), {*map(str, _parts(part, {"required"}, root))}
        is_alone = part.keys() & {*NAMED, *SAME} == {"properties"} and id(part) not in joined
        if is_alone and isinstance(names, dict) and required <= names.keys():
            part["additionalProperties"] = False
    # lenient: llguidance names unknown keywords instead of refusing them.
    options = {"lenient": True, "whitespace_pattern": rf" |\n {{0,{INDENT * _depth(root)}}}"}
    return f"%json {json.dumps({**root, 'x-guidance': options})}"


def _joined(schema: Schema, root: Schema) -> list[Any]:
    """Return the parts of a schema whose objects have properties that other parts of it name."""
    others = schema.keys() & {*NAMED, *SAME, "required"}
    found = _parts(schema, {"allOf", "$ref"}, root)
    if len(others - {"required"}) > 1:
        found += _parts(schema, {"anyOf", "oneOf"}, root)
    return found if len(others) > 1 or len(found) > 1 else []


def _depth(root: Schema) -> int:
    """Return how many objects and arrays of a schema's value are in one another, at most DEEPEST."""
    level: list[Any] = [root]
    for depth in range(DEEPEST):
        alike = _reached(level, SAME, root)
        if any(map(_is_free, alike)):
            break
        if not any(part.keys() & HELD for part in alike):
            return depth
        level = [{} if each is True else each for part in alike for each in _parts(part, HELD, root)]
    return DEEPEST


def _is_free(schema: Schema) -> bool:
    """Whether the value may be an object or an array of anything."""
    is_told = schema.keys() & {*HELD, *SAME, "required", "const", "enum"}
    return not is_told and bool(re.search("object|array", str(schema.get("type", "object"))))


def _reached(schemas: Iterable[Any], keywords: Set[str], root: Schema) -> list[Schema]:
    """Return schemas, and all others that keywords lead to."""
    found: dict[int, Schema] = {}
    left = [*schemas]
    while left:
        if isinstance(part := left.pop(), dict) and id(part) not in found:
            found[id(part)] = part
            left += _parts(part, keywords, root)
    return [*found.values()]


def types_in(schema: Any, root: Any) -> set[str]:
    """Return the types that a schema inside of `root` names for its value; none if it takes all."""
    named = (part.get("type", ()) for part in _reached([schema], SAME, root))
    return {each for types in named for each in ([types] if isinstance(types, str) else types)}


def _parts(schema: Schema, keywords: Set[str], root: Any) -> list[Any]:
    """Return what keywords of a schema hold, one by one, and the target of its reference."""
    found: list[Any] = []
    for keyword in schema.keys() & keywords:
        value = schema[keyword]
        if keyword == "$ref":
            place, *steps = unquote(str(value)).split("/")
            value = root if place == "#" else None
            for step in steps:
                held = {str(n): each for n, each in enumerate(value)} if isinstance(value, list) else value
                value = held.get(step) if isinstance(held, dict) else None
        elif keyword in ("properties", "patternProperties") and isinstance(value, dict):
            value = [*value.values()]
        found += value if isinstance(value, list) else [value]
    return found


def checked(grammar: str, what: str) -> tuple[str, list[str]]:
    """Return a grammar with llguidance's warnings about it. Raises UsageError, which names it as `what`."""
    from llguidance import LLMatcher

    failed, said = LLMatcher.validate_grammar_with_warnings(grammar)
    if failed:
        # Behind the reason stands the whole grammar, from its first line's number on.
        reason = said[0].rpartition("failed to compile JSON schema: ")[2].split("\n   1 | ")[0]
        raise UsageError(f"{what} cannot be followed: {' '.join(printable(reason).split())[:200]}", "change it there")
    return grammar, [f"{what}: {printable(each.replace('Unimplemented keys', 'not followed'))}" for each in said]
