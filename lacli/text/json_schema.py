"""JSON schemas as llguidance grammars, with warnings about ignored keywords; JSON values as pydantic models."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Set
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

from lacli.errors import UsageError
from lacli.text.format import printable

if TYPE_CHECKING:
    from pydantic import BaseModel

Schema = dict[str, Any]

Model = TypeVar("Model", bound="BaseModel")

HEAD = "%llguidance {}\n"
"""The first line of a llguidance grammar; a grammar without it is GBNF."""

MOST_INDENT = 32
"""Spaces of an indent, at most: eight levels of four."""

NAMED = {"properties", "patternProperties", "additionalProperties"}
HELD = {*NAMED, "items", "prefixItems", "additionalItems"}
"""Keywords whose values are schemas: NAMED of an object's properties, HELD of an array's items too."""

SAME = {"allOf", "anyOf", "oneOf", "$ref"}
"""Keywords whose schemas are about the same value as the schema that has the keyword."""

KINDS = ("str", "int", "float", "bool", "Tool")
"""pydantic's names of types, which the places in its errors contain if a field may have several types."""


def grammar_of(text: str) -> tuple[str, list[str]]:
    """Return a grammar for a JSON schema's text, and a sentence for each keyword that the grammar ignores.

    Raises UsageError if the text is no JSON object, or llguidance refuses the schema.
    """
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = """give an object, '{"type": "integer"}' in a shell; -jf FILE reads one"""
        raise UsageError(f"the JSON schema is not JSON: {printable(str(error))}", hint) from error
    if not isinstance(schema, dict):
        raise UsageError("the JSON schema is not an object", """write something like {"type": "object"}""")
    try:
        return checked_grammar(f"{HEAD}start: {json_value(schema)}", "the JSON schema")
    except RecursionError as error:
        raise UsageError("the JSON schema is nested too deeply", "make it flatter") from error


def json_value(schema: Mapping[str, Any]) -> str:
    """Return the part of an llguidance grammar that allows the JSON values of a schema.

    As in llama.cpp, an object has only the properties that its schema names: small models would add properties for
    ever. Between tokens comes at most one space, or a line break and an indent: small models would repeat white space.
    """
    root = json.loads(json.dumps(schema))
    schemas = _reached([root], HELD | SAME, root)
    # Each of several parts that describe one object must allow the others' properties.
    joined = {id(each) for part in schemas for each in _reached(_joined(part, root), SAME, root)}
    for part in schemas:
        names, required = part.get("properties"), {*map(str, _parts(part, {"required"}, root))}
        is_alone = part.keys() & {*NAMED, *SAME} == {"properties"} and id(part) not in joined
        if is_alone and isinstance(names, dict) and required <= names.keys():
            part["additionalProperties"] = False
    # lenient: llguidance reports unknown keywords instead of refusing the schema.
    options = {"lenient": True, "whitespace_pattern": rf" |\n {{0,{MOST_INDENT}}}"}
    return f"%json {json.dumps({**root, 'x-guidance': options})}"


def _joined(schema: Schema, root: Schema) -> list[Any]:
    """Return the parts of `schema` if an object must match several at once, otherwise []. `root`: the whole schema."""
    others = schema.keys() & {*NAMED, *SAME, "required"}
    found = _parts(schema, {"allOf", "$ref"}, root)
    if len(others - {"required"}) > 1:
        found += _parts(schema, {"anyOf", "oneOf"}, root)
    return found if len(others) > 1 or len(found) > 1 else []


def _reached(schemas: Iterable[Any], keywords: Set[str], root: Schema) -> list[Schema]:
    """Return `schemas` and all schemas reached from them by `keywords`. `root`: the whole schema, for references."""
    found: dict[int, Schema] = {}
    left = [*schemas]
    while left:
        if isinstance(part := left.pop(), dict) and id(part) not in found:
            found[id(part)] = part
            left += _parts(part, keywords, root)
    return [*found.values()]


def types_in(schema: Any, root: Any) -> set[str]:
    """Return the types that `schema` names for its value; empty if none. `root`: the whole schema, for references."""
    named = (part.get("type", ()) for part in _reached([schema], SAME, root))
    return {each for types in named for each in ([types] if isinstance(types, str) else types)}


def _parts(schema: Schema, keywords: Set[str], root: Any) -> list[Any]:
    """Return the values of `keywords` in a schema as one list. A $ref becomes its target in `root`, None if missing."""
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


def checked_grammar(grammar: str, what: str) -> tuple[str, list[str]]:
    """Return `grammar` and llguidance's warnings. Raises UsageError if it is invalid. `what`: its name in messages."""
    from llguidance import LLMatcher

    failed, said = LLMatcher.validate_grammar_with_warnings(grammar)
    if failed:
        # llguidance's message ends with the whole grammar, numbered by line.
        reason = said[0].rpartition("failed to compile JSON schema: ")[2].split("\n   1 | ")[0]
        raise UsageError(f"{what} cannot be followed: {' '.join(printable(reason).split())[:200]}", "correct it")
    return grammar, [f"{what}: {printable(each.replace('Unimplemented keys', 'not followed'))}" for each in said]


def checked(kind: type[Model], found: Any) -> Model:
    """Return a JSON value as an object of the class `kind`. Raises UsageError about the deepest invalid field."""
    from pydantic import ValidationError

    try:
        return kind.model_validate(found)
    except ValidationError as error:
        first = max(error.errors(), key=lambda each: len(each["loc"]))
        place = ".".join(str(each) for each in first["loc"] if each not in KINDS and "[" not in str(each))
        words = first["msg"].removeprefix("Value error, ").split(" after validation")[0]
        if first["type"] in ("dict_type", "model_type"):
            words = "a JSON object is needed"
        raise UsageError(f"{place}: {words}" if place else words) from error


def without_null(found: object) -> object:
    """Return a JSON object without its null fields, which count as missing; any other value unchanged."""
    return {k: v for k, v in found.items() if v is not None} if isinstance(found, Mapping) else found
