"""JSON schemas: checked for what llama.cpp's grammar converter ignores or crashes at, and converted."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from graphlib import CycleError, TopologicalSorter
from typing import Any
from urllib.parse import unquote

from lacli.errors import UsageError

Json = dict[str, Any]

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")

ANNOTATIONS = (
    "title description default example examples $schema $id id $anchor $comment $vocabulary deprecated readOnly"
    " writeOnly $defs definitions discriminator contentMediaType contentEncoding"
)

KEYWORDS = (
    "$ref $dynamicRef $dynamicAnchor type const enum oneOf anyOf allOf not if then else properties required"
    " additionalProperties patternProperties propertyNames unevaluatedProperties minProperties maxProperties"
    " dependencies dependentRequired dependentSchemas items prefixItems additionalItems unevaluatedItems contains"
    " minContains maxContains minItems maxItems uniqueItems pattern format minLength maxLength minimum maximum"
    " exclusiveMinimum exclusiveMaximum multipleOf contentSchema"
)
# Nobody misses these: they allow everything, or, as no items beside prefixItems, what the grammar allows anyway.
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

KNOWN_FORMAT = re.compile(r"uuid[1-5]?|date|time|date-time")


def honoured_keywords(schema: Json) -> tuple[str, ...]:
    """The keywords that the converter reads in a schema: those of the first branch of its `visit` that applies."""
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
    return ("type", "minLength", "maxLength") if kind == "string" else ("type",)


def is_annotation(name: str) -> bool:
    """Whether a keyword describes and constrains nothing."""
    return name in ANNOTATIONS.split() or name.startswith("x-")


def says_something(schema: Json) -> bool:
    """Whether a schema constrains anything."""
    return not all(is_annotation(name) for name in schema)


MOST_REPEATS = 1000
"""llama.cpp refuses a grammar with a longer run of optional parts."""

# What the converter translates correctly. It loses the piece before an escape with a quantifier, stops for ever at a
# bare ] or }, and passes on escapes such as \d, which llama.cpp then refuses.
PIECE = re.compile(
    r"\\[\[\](){}|*+?](?![*+?{])"
    r"|\[\^?(?:[^\\\]\x00-\x1f\ud800-\udfff]|\\[\[\]\\nrt-]|\\u[0-9a-fA-F]{4})+\]"
    r"|\{(?:\d+(?:,\d*)?|,\d+)\}|\((?!\?)|[)|*+?.]"
    r'|[^\\\[\](){}|*+?.^$"\x00-\x1f\ud800-\udfff]'
)

UNSAFE = ['"', "\\", *map(chr, range(32))]

FORBIDDEN = r'"\\\x00-\x1F'

SAFE_CHARACTER = f"[^{FORBIDDEN}]"
"""What a JSON string holds as it is, as a class of a grammar."""

ESCAPE = re.compile(r"\[(?:\\.|[^\]\\])*\]|\\.", re.DOTALL)

INSIDE = {"d": "0-9", "w": "A-Za-z0-9_", "s": " ", **{mark: mark for mark in ".+*?(){}|$/,:;@#%&=!~<>'"}}
"""What stands in a class for an escape: of the white space only the one that JSON takes as it is."""

HINT = r"write it another way: letters, classes such as [0-9], ( ) | * + ? and {2,3} are understood"


def inside_json(pattern: str, place: str) -> str:
    """A pattern for the whole of a JSON string, which lets no quote, backslash or control character in.

    JSON would have to escape those, and a grammar does not. Where an anchor is missing anything may stand. Raises
    UsageError, naming the place, for what the converter refuses, translates wrongly or never finishes.
    """
    begins, ends = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith(r"\$")
    inner = pattern[begins : len(pattern) - ends]
    with warnings.catch_warnings():
        # Python may read brackets inside brackets differently one day, and says so.
        warnings.simplefilter("ignore", FutureWarning)
        pieces = _pieces(inner, place)
        for piece in pieces:
            if piece[0] == "[" and piece[1] != "^" and any(re.fullmatch(piece, bad) for bad in UNSAFE):
                what = "a quote, a backslash or a control character"
                raise UsageError(f"{piece} in the pattern at {place} allows {what}", "JSON cannot hold it unescaped")
    safe = "".join(_safe(piece) for piece in pieces)
    anything = f"{SAFE_CHARACTER}*"
    return f"^{'' if begins else anything}{safe}{'' if ends else anything}$"


def _safe(piece: str) -> str:
    if piece == ".":
        return SAFE_CHARACTER
    return f"{piece[:-1]}{FORBIDDEN}]" if piece.startswith("[^") else piece


def _pieces(pattern: str, place: str) -> list[str]:
    try:
        re.compile(pattern)
    except (re.error, OverflowError) as error:
        raise UsageError(f"the pattern at {place} is broken: {shown(str(error))}") from error
    pattern = ESCAPE.sub(_class_of, pattern)
    pieces: list[str] = []
    position = depth = 0
    while position < len(pattern):
        match = PIECE.match(pattern, position)
        if not match:
            rest = pattern[position : position + (2 if pattern[position] in "\\(" else 1)]
            raise UsageError(f"the pattern at {place} uses {shown(rest)}, which no grammar has", HINT)
        piece = match[0]
        depth += {"(": 1, ")": -1}.get(piece, 0)
        if piece == "|" and not depth:
            raise UsageError(f"the pattern at {place} has alternatives", "put them into parentheses: ^(a|b)$")
        if piece[0] == "{" and any(int(count) > MOST_REPEATS for count in re.findall(r"\d+", piece)):
            raise UsageError(f"{piece} in the pattern at {place} is too much", f"a grammar counts to {MOST_REPEATS}")
        pieces.append(piece)
        position = match.end()
    return pieces


def _class_of(found: re.Match[str]) -> str:
    """A class, or an escape outside of one, without the escapes that no grammar has."""
    text = found[0]
    if text[0] == "[":
        return re.sub(r"\\(.)", lambda escape: INSIDE.get(escape[1], escape[0]), text)
    if text[1] in INSIDE:
        return f"[{INSIDE[text[1]]}]"
    return text


def shown(text: str) -> str:
    """Text as part of one line, whatever it holds."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


SHELL = "quote it for the shell: -j '{...}', or use -jf FILE"

ANYTHING: Json = {"type": [name for name in TYPES if name != "integer"]}

ANY_CHARACTER = r'[^"\\]'
"""How the converter's rule for a string's characters begins."""

# JSON escapes that the converter passes on as escapes of the grammar, except those that mean the same there.
WRONG_ESCAPE = re.compile(r"\\(?!u(?!00[01]|d[89a-f]))")


def grammar_of(text: str, convert: Callable[[str], str]) -> tuple[str, list[str]]:
    """The grammar for a JSON schema, and one sentence for each kind of keyword that it does not enforce.

    convert: the converter, JSON schema to GBNF. Raises UsageError, in one line, for whatever cannot be converted.
    """
    try:
        schema = json.loads(text, parse_constant=_refuse_number)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise UsageError(f"the JSON schema is not JSON: {shown(error.msg)} at {where}", SHELL) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the JSON schema is not JSON: {shown(str(error))}", SHELL) from error
    if not isinstance(schema, dict):
        raise UsageError("the JSON schema is not an object", """write something like {"type": "object"}""")
    try:
        reader = _Reader(schema)
        copy = reader.read_all()
        return _without_control_characters(convert(json.dumps(copy, allow_nan=False))), reader.sentences()
    except UsageError as error:
        error.hint = error.hint or "change the schema there"
        raise
    except RecursionError as error:
        raise UsageError(
            "the JSON schema is nested too deeply, or an allOf contains itself", "make it flatter"
        ) from error
    except Exception as error:  # the converter raises whatever Python does on an unexpected value
        reason = shown(str(error) or type(error).__name__)[:200]
        raise UsageError(f"cannot turn the JSON schema into a grammar: {reason}", "try a simpler schema") from error


class _Reader:
    """Copies a schema with the honoured keywords only, and remembers what it left out."""

    def __init__(self, schema: Json) -> None:
        self._schema = schema
        self._ignored: dict[str, list[str]] = {}
        self._definitions: Json = {}
        self._names: dict[str, str] = {}
        self._stem = "reference"
        while self._stem in json.dumps(schema):
            self._stem += "x"
        # The references that may follow a reference before any text does: a circle of them never ends.
        self._next: dict[str, set[str]] = {}
        self._values: dict[str, Callable[[Any, str, str], Any]] = {
            "$ref": self._reference,
            "oneOf": self._alternatives,
            "anyOf": self._alternatives,
            "allOf": self._parts,
            "type": self._type,
            "const": self._constant,
            "enum": self._constants,
            "properties": self._properties,
            "required": self._required,
            "additionalProperties": self._additional_properties,
            "items": self._items,
            "prefixItems": self._tuple,
            "pattern": self._pattern,
        }

    def read_all(self) -> Json:
        """The whole schema and the definitions that its references reach."""
        copy = self.read(self._schema, "") if says_something(self._schema) else {}
        try:
            TopologicalSorter(self._next).prepare()
        except CycleError as error:
            raise UsageError(f"the $ref {shown(error.args[1][0])} leads back to itself") from error
        if "$ref" in copy:
            # The converter does not look at definitions that stand beside a reference.
            copy = {"anyOf": [copy]}
        return copy | {"$defs": self._definitions} if self._definitions else copy

    def read(self, schema: Any, path: str, inside: str = "") -> Json:
        """One schema; inside: the reference that led here without an object or an array in between."""
        if schema is True or schema == {}:
            return ANYTHING
        if not isinstance(schema, dict):
            raise UsageError(f"no schema that a grammar can follow at {_place(path)}", "it must be a JSON object")
        if not says_something(schema):
            return ANYTHING
        honoured = honoured_keywords(schema)
        self._note_others(schema, honoured, path)
        if honoured == ("type",) and "type" not in schema:
            raise UsageError(f"the schema at {_place(path)} has no type", "one of " + ", ".join(TYPES))
        if "allOf" in honoured and isinstance(schema["allOf"], list) and len(schema["allOf"]) == 1:
            return self.read(schema["allOf"][0], f"{path}/allOf/0", inside)
        copy = {name: schema[name] for name in honoured if name in schema}
        for least, most in (("minItems", "maxItems"), ("minLength", "maxLength")):
            _check_range(copy, least, most, path)
        for name, value in copy.items():
            if name in self._values:
                copy[name] = self._values[name](value, f"{path}/{name}", inside)
        for name in copy.get("required", []):
            if name not in copy.get("properties", {}):
                self._note(f"the grammar ignores required {shown(name)}, which is not in properties,", path)
        return copy

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
            if name in honoured or is_annotation(name) or (name in HARMLESS and HARMLESS[name] == value):
                continue
            unknown = "" if name in KEYWORDS.split() else ", which is no JSON schema keyword,"
            self._note(f"the grammar ignores {shown(name)}{unknown}", path)

    def _reference(self, reference: Any, path: str, inside: str) -> str:
        if not isinstance(reference, str):
            raise UsageError(f"$ref at {_place(path)} is no text")
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

    def _alternatives(self, schemas: Any, path: str, inside: str) -> list[Json]:
        return [self.read(schema, f"{path}/{index}", inside) for index, schema in enumerate(_listed(schemas, path))]

    def _parts(self, parts: Any, path: str, inside: str) -> list[Json]:
        copies: list[Json] = []
        seen: set[str] = set()
        for index, part in enumerate(_listed(parts, path)):
            where = f"{path}/{index}"
            if isinstance(part, dict) and "anyOf" in part:
                self._note_others(part, ("anyOf",), where)
                choices = _listed(part["anyOf"], f"{where}/anyOf")
                copy = [self._part(choice, f"{where}/anyOf/{number}") for number, choice in enumerate(choices)]
                names = [name for choice in copy for name in choice["properties"]]
                copies.append({"anyOf": copy})
            else:
                copies.append(self._part(part, where))
                names = list(copies[-1]["properties"])
            for name in names:
                if name in seen:
                    raise UsageError(f"{shown(name)} is a property of two parts at {_place(path)}", "merge them")
                seen.add(name)
        return copies

    def _part(self, part: Any, path: str) -> Json:
        if isinstance(part, dict) and isinstance(reference := part.get("$ref"), str):
            self._note_others(part, ("$ref",), path)
            part, path = self._target(reference), reference[1:]
        if not isinstance(part, dict) or "properties" not in part or "$ref" in part:
            raise UsageError(
                f"allOf can only join objects with properties, unlike {_place(path)}", "merge them yourself"
            )
        self._note_others(part, ("type", "properties"), path)
        return {"properties": self._properties(part["properties"], f"{path}/properties", "")}

    def _type(self, kind: Any, path: str, _inside: str) -> Any:
        for name in _listed(kind, path) if isinstance(kind, list) else [kind]:
            if name not in TYPES:
                raise UsageError(
                    f"{shown(json.dumps(name))} at {_place(path)} is no type", "one of " + ", ".join(TYPES)
                )
        return kind

    def _constants(self, values: Any, path: str, _inside: str) -> list[Any]:
        return [self._constant(value, f"{path}/{index}", "") for index, value in enumerate(_listed(values, path))]

    def _constant(self, value: Any, path: str, _inside: str) -> Any:
        text = json.dumps(value)
        _check_escapes(text, path)
        if '"$ref":' in text:
            raise UsageError(f"the constant at {_place(path)} has a $ref, which the converter would follow")
        return value

    def _properties(self, schemas: Any, path: str, _inside: str) -> Json:
        if not isinstance(schemas, dict):
            raise UsageError(f"{_place(path)} is no JSON object of schemas")
        copies = {}
        for name, schema in schemas.items():
            where = f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
            # The converter takes these for the root rule, for the further properties and for a reference.
            if name in ("", "*", "$ref"):
                raise UsageError(f"a property cannot be called {json.dumps(name)} in a grammar, at {_place(path)}")
            _check_escapes(json.dumps(name), where)
            copies[name] = self.read(schema, where)
        return copies

    def _required(self, names: Any, path: str, _inside: str) -> list[str]:
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise UsageError(f"{_place(path)} is no list of property names")
        return names

    def _additional_properties(self, schema: Any, path: str, _inside: str) -> Any:
        return self.read(schema, path) if schema is not False else False

    def _items(self, schema: Any, path: str, _inside: str) -> Any:
        if isinstance(schema, list):
            return self._alternatives(schema, path, "")
        return self.read(schema, path)

    def _tuple(self, schemas: Any, path: str, _inside: str) -> list[Json]:
        return self._alternatives(schemas, path, "")

    def _pattern(self, pattern: Any, path: str, _inside: str) -> str:
        if not isinstance(pattern, str):
            raise UsageError(f"the pattern at {_place(path)} is no text")
        return inside_json(pattern, _place(path))


def _without_control_characters(grammar: str) -> str:
    """The grammar with a rule for characters that JSON strings may have; the converter's lets newlines in."""
    return grammar.replace(f"char ::= {ANY_CHARACTER}", f"char ::= {SAFE_CHARACTER}", 1)


def _check_range(copy: Json, least: str, most: str, path: str) -> None:
    for name in (least, most):
        value = copy.get(name, 0)
        if type(value) is not int or not 0 <= value <= MOST_REPEATS:
            hint = f"a grammar counts from 0 to {MOST_REPEATS}"
            raise UsageError(f"{name} at {_place(path)} is {shown(json.dumps(value))}", hint)
    if least in copy and most in copy and copy[least] > copy[most]:
        raise UsageError(f"{least} is more than {most} at {_place(path)}")


def _check_escapes(text: str, path: str) -> None:
    if WRONG_ESCAPE.search(text):
        what = "a quote, a backslash, a control character or an emoji"
        raise UsageError(
            f"{what} at {_place(path)} cannot be part of a grammar", "leave it out; a pattern can have emojis"
        )


def _listed(values: Any, path: str) -> list[Any]:
    if not isinstance(values, list) or not values:
        raise UsageError(f"{_place(path)} must be a list that is not empty")
    return values


def _refuse_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _place(path: str) -> str:
    return shown(path) or "the top"
