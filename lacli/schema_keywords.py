"""The keywords of JSON schemas, and which of them the converter of llama-cpp-python reads in a schema.

Tables and their reading; `schema.py` applies them.
"""

from __future__ import annotations

import re
from typing import Any

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
