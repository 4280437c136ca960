"""JSON schemas: converted to grammars, with what llama.cpp's converter ignores named and what it gets wrong refused."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from graphlib import CycleError, TopologicalSorter
from math import ceil, floor
from typing import Any
from urllib.parse import unquote

from lacli.errors import UsageError
from lacli.text.gbnf import LONGEST_RUN, SAFE_CHARACTER, inside_json, integers, literal, shown

Json = dict[str, Any]

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")

ANNOTATIONS = (
    "title description default example examples $schema $id id $anchor $comment $vocabulary deprecated readOnly"
    " writeOnly $defs definitions discriminator contentMediaType contentEncoding"
)
"""Keywords that describe and constrain nothing; so do those that begin with x-."""

HARMLESS: Json = {
    "additionalProperties": True,
    "unevaluatedProperties": True,
    "uniqueItems": False,
    "required": [],
    "minItems": 0,
    "minLength": 0,
    "minProperties": 0,
    "items": False,
}
"""Keywords with a value that allows everything, or, as no items beside prefixItems, what the grammar allows anyway."""

KNOWN_FORMAT = re.compile(r"uuid[1-5]?|date|time|date-time")

ANYTHING: Json = {"type": [name for name in TYPES if name != "integer"]}

ANY_CHARACTER = r'[^"\\]'
"""The beginning of the converter's rule for a string's characters, which lets newlines in."""

WRONG_ESCAPE = re.compile(r"\\(?!u(?!00[01]|d[89a-f]))")
"""JSON escapes that the converter copies into the grammar although they mean something else there."""

SURROGATE = re.compile(r"[\ud800-\udfff]")

BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
"""Keywords of whole numbers, which the converter ignores."""

OF_TYPE = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "integer": (*BOUNDS, "multipleOf"),
    "number": (*BOUNDS, "multipleOf"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "object": ("properties", "required", "additionalProperties", "allOf"),
}
"""Keywords that constrain values of one type only, by that type."""

LIST = "a list that is not empty"

SHAPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "type": (
        f"one of {', '.join(TYPES)}",
        lambda kind: bool(kind) and all(each in TYPES for each in (kind if isinstance(kind, list) else [kind])),
    ),
    "properties": ("an object of schemas", lambda value: isinstance(value, dict)),
    "required": ("a list of names", lambda names: isinstance(names, list) and all(isinstance(n, str) for n in names)),
    "items": (f"a schema or {LIST}", lambda items: items != []),
    **dict.fromkeys(("$ref", "pattern"), ("a text", lambda value: isinstance(value, str))),
    **dict.fromkeys(
        ("enum", "oneOf", "anyOf", "allOf", "prefixItems"), (LIST, lambda v: isinstance(v, list) and bool(v))
    ),
    **dict.fromkeys(
        ("minItems", "maxItems", "minLength", "maxLength"),
        (f"a whole number from 0 to {LONGEST_RUN}", lambda value: type(value) is int and 0 <= value <= LONGEST_RUN),
    ),
}
"""What the value of a keyword must be, in words and as a test: the converter stumbles over others."""


def grammar_of(text: str, convert: Callable[[str], str]) -> tuple[str, list[str]]:
    """The grammar for a JSON schema, and one sentence for each kind of keyword that it does not enforce.

    `convert`: the converter, JSON schema to GBNF. Raises UsageError, in one line, for whatever cannot be converted.
    """
    try:
        schema = json.loads(text, parse_constant=_refuse_number)
    except (ValueError, RecursionError) as error:
        hint = """give an object, '{"type": "integer"}' in a shell; -jf FILE reads one"""
        raise UsageError(f"the JSON schema is not JSON: {shown(str(error))}", hint) from error
    if not isinstance(schema, dict):
        raise UsageError("the JSON schema is not an object", """write something like {"type": "object"}""")
    try:
        reader = _Reader(schema)
        copy = reader.read_all()
        grammar = reader.with_parts(convert(json.dumps(copy, allow_nan=False)))
    except UsageError as error:
        raise UsageError(f"the JSON schema: {error.what}", error.hint or "change the schema there") from error
    except RecursionError as error:
        raise UsageError(
            "the JSON schema is nested too deeply, or an allOf contains itself", "make it flatter"
        ) from error
    except Exception as error:  # the converter raises whatever Python does on an unexpected value
        reason = shown(str(error) or type(error).__name__)[:200]
        raise UsageError(f"cannot turn the JSON schema into a grammar: {reason}", "try a simpler schema") from error
    return grammar.replace(f"char ::= {ANY_CHARACTER}", f"char ::= {SAFE_CHARACTER}", 1), reader.sentences()


def honoured_keywords(schema: Json) -> tuple[str, ...]:
    """The keywords that are kept: those of the first branch of the converter's `visit` that applies, and BOUNDS."""
    kind = schema.get("type")
    if "$ref" in schema:
        return ("$ref",)
    if "oneOf" in schema or "anyOf" in schema:
        return ("oneOf",) if "oneOf" in schema else ("anyOf",)
    if isinstance(kind, list):
        return ("type",)
    if "const" in schema or "enum" in schema:
        return ("type", "const") if "const" in schema else ("type", "enum")
    if kind in (None, "object"):
        if "properties" in schema or schema.get("additionalProperties", True) is not True:
            return ("type", "properties", "required", "additionalProperties")
        if "allOf" in schema:
            return ("type", "allOf")
    if kind in (None, "array") and ("items" in schema or "prefixItems" in schema):
        items = schema.get("items")
        if not items and "prefixItems" in schema:
            return ("type", "prefixItems")
        return ("type", "items") if isinstance(items, list) else ("type", "items", "minItems", "maxItems")
    if kind in (None, "string"):
        if "pattern" in schema:
            return ("type", "pattern")
        if KNOWN_FORMAT.fullmatch(str(schema.get("format"))):
            return ("type", "format")
    if kind == "integer":
        # Draft 4 had true and false for two of them.
        return ("type", *(name for name in BOUNDS if type(schema.get(name)) in (int, float)))
    return ("type", "minLength", "maxLength") if kind == "string" else ("type",)


class _Reader:
    """Copies a schema with the honoured keywords only, and remembers which it left out."""

    def __init__(self, schema: Json) -> None:
        self._schema = schema
        self._ignored: dict[str, list[str]] = {}
        self._definitions: Json = {}
        self._names: dict[str, str] = {}
        # Parts of the grammar that the converter does not write, by the constants in their place.
        self._parts_of: dict[str, str] = {}
        self._stem = "reference"
        while self._stem in json.dumps(schema):
            self._stem += "x"
        # The references that may follow a reference before any text does: a circle of them never ends.
        self._next: dict[str, set[str]] = {}

    def read_all(self) -> Json:
        """The whole schema and the definitions that its references reach."""
        # An empty schema means any object to llama.cpp.
        copy = self.read(self._schema, "") if _says_something(self._schema) else {}
        try:
            TopologicalSorter(self._next).prepare()
        except CycleError as error:
            raise UsageError(f"the $ref {shown(error.args[1][0])} leads back to itself") from error
        if "$ref" in copy:
            # The converter does not look at definitions that stand beside a reference.
            copy = {"anyOf": [copy]}
        return copy | {"$defs": self._definitions} if self._definitions else copy

    def read(self, schema: Any, path: str, inside: str = "") -> Json:
        """One schema; `inside`: the reference that led here without an object or an array in between."""
        if schema is True or (isinstance(schema, dict) and not _says_something(schema)):
            return ANYTHING
        if not isinstance(schema, dict):
            raise UsageError(f"nothing that a grammar can follow at {_place(path)}", "it must be a JSON object")
        if isinstance(kinds := schema.get("type"), list) and not schema.keys() & {"$ref", "oneOf", "anyOf"}:
            # The converter would read the types only.
            _check_shape("type", kinds, f"{path}/type")
            if schema.keys() & {"const", "enum"}:
                schema = {name: value for name, value in schema.items() if name != "type"}
            elif any(not _is_annotation(name) for name in schema if name != "type"):
                return {"anyOf": [self.read(each, path, inside) for each in _of_each_type(schema, kinds)]}
        honoured = honoured_keywords(schema)
        self._note_others(schema, honoured, path)
        if honoured == ("type",) and "type" not in schema:
            raise UsageError(f"no type at {_place(path)}", f"it must be {SHAPES['type'][0]}")
        copy = {name: schema[name] for name in honoured if name in schema}
        for name in ("maxItems", "maxLength"):
            if type(copy.get(name)) is int and copy[name] > LONGEST_RUN:
                del copy[name]
                self._note(f"the schema's {name} above {LONGEST_RUN:,} is not enforced", path)
        for name, value in copy.items():
            _check_shape(name, value, f"{path}/{name}")
        for least, most in (("minItems", "maxItems"), ("minLength", "maxLength")):
            if least in copy and most in copy and copy[least] > copy[most]:
                raise UsageError(f"{least} is more than {most} at {_place(path)}")
        if len(copy.get("allOf", ())) == 1:
            return self.read(copy["allOf"][0], f"{path}/allOf/0", inside)
        if not copy.keys().isdisjoint(BOUNDS):
            return {"const": self._in_place_of(f"({_whole_numbers(copy, path)}) space")}
        copy = {name: self._read_value(name, value, f"{path}/{name}", inside) for name, value in copy.items()}
        for name in copy.get("required", []):
            if name not in copy.get("properties", {}):
                self._note(f"the schema's required {shown(name)}, which is not in properties, is not enforced", path)
        return copy

    def with_parts(self, grammar: str) -> str:
        """The converter's grammar with what it does not write itself."""
        for constant, part in self._parts_of.items():
            grammar = grammar.replace(literal(json.dumps(constant)), part)
        return grammar

    def sentences(self) -> list[str]:
        """What was left out, the first places of each."""
        sentences = []
        for what, places in self._ignored.items():
            more = f" and {len(places) - 3} more" if len(places) > 3 else ""
            sentences.append(f"{what} at {', '.join(places[:3])}{more}")
        return sentences

    def _note(self, what: str, path: str) -> None:
        places = self._ignored.setdefault(what, [])
        if _place(path) not in places:
            places.append(_place(path))

    def _note_others(self, schema: Json, honoured: tuple[str, ...], path: str) -> None:
        for name, value in schema.items():
            if name in honoured or _is_annotation(name) or (name in HARMLESS and HARMLESS[name] == value):
                continue
            lists = (schema.get(each) for each in ("prefixItems", "items") if each in honoured)
            if any(isinstance(items, list) and _meets_bound(name, value, len(items)) for items in lists):
                continue
            self._note(f"the schema's {shown(name)} is not enforced", path)

    def _read_value(self, name: str, value: Any, path: str, inside: str) -> Any:
        if name in ("oneOf", "anyOf", "prefixItems") or (name == "items" and isinstance(value, list)):
            within = inside if name in ("oneOf", "anyOf") else ""
            return [self.read(schema, f"{path}/{index}", within) for index, schema in enumerate(value)]
        if name == "items" or (name == "additionalProperties" and value is not False):
            return self.read(value, path)
        if name == "properties":
            return self._properties(value, path)
        if name == "allOf":
            return self._parts(value, path)
        if name == "$ref":
            return self._reference(value, inside)
        if name == "pattern":
            return inside_json(value, _place(path))
        if name == "const":
            return self._constant(value, path)
        if name == "enum":
            return [self._constant(each, path) for each in value]
        return value

    def _in_place_of(self, part: str) -> str:
        """A constant in whose place the grammar gets a `part`."""
        constant = f"{self._stem} {len(self._parts_of)}."
        self._parts_of[constant] = part
        return constant

    def _constant(self, value: Any, path: str) -> Any:
        """A constant, or what stands for one whose escapes the converter would copy into the grammar."""
        text = json.dumps(value)
        if '"$ref":' in text:
            raise UsageError(f"the constant at {_place(path)} has a $ref, which the converter would follow")
        if not WRONG_ESCAPE.search(text):
            return value
        text = json.dumps(value, ensure_ascii=False)
        if SURROGATE.search(text):
            raise UsageError(f"the constant at {_place(path)} is no UTF-8 text", "leave half of a character out")
        return self._in_place_of(literal(text))

    def _reference(self, reference: str, inside: str) -> str:
        if inside:
            self._next.setdefault(inside, set()).add(reference)
        if reference not in self._names:
            # The converter takes a definition for any rule of the same name, so it gets a name that no rule has.
            name = self._names[reference] = f"{self._stem}-{len(self._names)}"
            self._definitions[name] = self.read(self._target(reference), reference[1:], reference)
        return f"#/$defs/{self._names[reference]}"

    def _target(self, reference: str) -> Any:
        if reference.startswith(("http://", "https://")):
            raise UsageError(f"the $ref {shown(reference)} is on the web", "copy it into $defs")
        target: Any = self._schema
        try:
            if reference != "#" and not reference.startswith("#/"):
                raise KeyError(reference)
            for part in reference.split("/")[1:]:
                key = unquote(part).replace("~1", "/").replace("~0", "~")
                target = target[int(key) if isinstance(target, list) else key]
        except (LookupError, TypeError, ValueError) as error:
            raise UsageError(f"there is no {shown(reference)} for a $ref", "write it like #/$defs/name") from error
        return target

    def _properties(self, schemas: Json, path: str) -> Json:
        copies = {}
        for name, schema in schemas.items():
            where = f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
            # The converter takes these for the root rule, for the further properties and for a reference.
            if name in ("", "*", "$ref"):
                raise UsageError(f"a property cannot be called {json.dumps(name)} in a grammar, at {_place(path)}")
            _check_name(name, where)
            copies[name] = self.read(schema, where)
        return copies

    def _parts(self, parts: list[Any], path: str) -> list[Json]:
        copies: list[Json] = []
        for index, part in enumerate(parts):
            where = f"{path}/{index}"
            if isinstance(part, dict) and "anyOf" in part:
                self._note_others(part, ("anyOf",), where)
                _check_shape("anyOf", part["anyOf"], f"{where}/anyOf")
                choices = enumerate(part["anyOf"])
                copies.append({"anyOf": [self._part(choice, f"{where}/anyOf/{number}") for number, choice in choices]})
            else:
                copies.append(self._part(part, where, is_whole=True))
        names = Counter(name for copy in copies for part in copy.get("anyOf", [copy]) for name in part["properties"])
        for name, count in names.items():
            if count > 1:
                raise UsageError(f"{shown(name)} is a property of two parts at {_place(path)}", "merge them")
        return copies

    def _part(self, part: Any, path: str, *, is_whole: bool = False) -> Json:
        """Return the properties of a part of an allOf. `is_whole`: it is no choice of several, and all have to come."""
        if isinstance(part, dict) and isinstance(reference := part.get("$ref"), str):
            self._note_others(part, ("$ref",), path)
            part, path = self._target(reference), reference[1:]
        if not isinstance(part, dict) or "properties" not in part or "$ref" in part:
            raise UsageError(
                f"allOf can only join objects with properties, unlike {_place(path)}", "merge them yourself"
            )
        _check_shape("properties", part["properties"], f"{path}/properties")
        required = part.get("required", [])
        _check_shape("required", required, f"{path}/required")
        is_met = is_whole and part["properties"].keys() >= {*required}
        self._note_others(part, ("type", "properties", *["required"] * is_met), path)
        return {"properties": self._properties(part["properties"], f"{path}/properties")}


def _meets_bound(name: str, value: Any, length: int) -> bool:
    """True if a list of exactly `length` items meets the bound `name`: `value`."""
    if type(value) is not int:
        return False
    return (name == "minItems" and value <= length) or (name == "maxItems" and value >= length)


def _of_each_type(schema: Json, kinds: list[str]) -> list[Json]:
    """Split a schema with several types into one a type, each with the keywords that OF_TYPE names for it.

    The others stay with the first, where they are noted as not enforced.
    """
    own = {kind: {name: schema[name] for name in OF_TYPE.get(kind, ()) if name in schema} for kind in kinds}
    rest = {name: value for name, value in schema.items() if not any(name in each for each in own.values())}
    return [{**(rest if kind == kinds[0] else {}), **each, "type": kind} for kind, each in own.items()]


def _check_shape(name: str, value: Any, path: str) -> None:
    words, fits = SHAPES.get(name, ("", lambda value: True))
    if not fits(value):
        raise UsageError(f"{_place(path)} is {shown(json.dumps(value))[:80]}", f"it must be {words}")


def _whole_numbers(schema: Json, path: str) -> str:
    """The part of a grammar for the whole numbers between the BOUNDS of a schema. Raises UsageError for none."""
    least = [ceil(schema["minimum"])] if "minimum" in schema else []
    least += [floor(schema["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in schema else []
    most = [floor(schema["maximum"])] if "maximum" in schema else []
    most += [ceil(schema["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in schema else []
    if least and most and max(least) > min(most):
        raise UsageError(f"no whole number is between the bounds at {_place(path)}")
    return integers(max(least, default=None), min(most, default=None))


def _check_name(name: str, path: str) -> None:
    if WRONG_ESCAPE.search(json.dumps(name)):
        what = "a quote, a backslash, a control character or an emoji"
        raise UsageError(f"{what} in the name {_place(path)} cannot be part of a grammar", "give it another name")


def _is_annotation(name: str) -> bool:
    return name in ANNOTATIONS.split() or name.startswith("x-")


def _says_something(schema: Json) -> bool:
    return not all(map(_is_annotation, schema))


def _refuse_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _place(path: str) -> str:
    return shown(path) or "the top"
