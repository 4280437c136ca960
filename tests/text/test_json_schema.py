"""JSON schemas: what the converter honours and what is named, what is refused, and that grammars are well formed."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_cpp.llama_grammar import json_schema_to_gbnf

from lacli.errors import UsageError
from lacli.text.json_schema import HARMLESS, MOST_REPEATS, SAFE_CHARACTER, grammar_of, honoured_keywords

Json = dict[str, Any]
INTEGER = {"type": "integer"}
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/my_node"}, "value": INTEGER}}

# Every branch of the converter, with a keyword it honours and one it does not.
SCHEMAS: list[Json] = [
    {"oneOf": [INTEGER], "anyOf": [{"type": "null"}], "type": "string", "properties": {}},
    {"anyOf": [INTEGER, {"type": "null"}], "type": "string", "minLength": 2},
    {"type": ["string", "null"], "pattern": "^a$", "enum": ["a"], "maxLength": 3},
    {"const": "a", "enum": ["b"], "minLength": 3, "pattern": "^b$"},
    {"enum": ["a", 1, None], "minimum": 3, "not": {"const": 1}},
    {
        "properties": {"a": INTEGER, "b": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": INTEGER,
        "patternProperties": {"^x": INTEGER},
        "minProperties": 1,
        "dependentRequired": {"a": ["b"]},
        "propertyNames": {"maxLength": 3},
        "if": {"required": ["a"]},
        "allOf": [{"properties": {"c": INTEGER}}],
    },
    {"type": "object", "additionalProperties": False, "maxProperties": 1},
    {"type": "object", "required": ["a"], "minProperties": 3, "requird": 1},
    {
        "allOf": [{"properties": {"a": INTEGER}}, {"anyOf": [{"properties": {"b": INTEGER}}]}],
        "unevaluatedProperties": False,
        "required": ["a"],
    },
    {"type": "array", "minItems": 1, "uniqueItems": True, "contains": INTEGER},
    {"items": INTEGER, "minItems": 2, "maxItems": 3, "uniqueItems": True, "prefixItems": [{"type": "null"}]},
    {"type": "array", "prefixItems": [INTEGER], "minItems": 1, "maxItems": 3},
    {"items": [INTEGER], "minItems": 1, "maxItems": 3, "additionalItems": INTEGER},
    {"type": "string", "pattern": "^[a-z]{2,3}$", "minLength": 2, "maxLength": 3, "format": "date"},
    {"type": "string", "format": "date", "minLength": 2, "maxLength": 3},
    {"type": "string", "format": "uuid4", "minLength": 2},
    {"type": "string", "format": "email", "minLength": 2, "maxLength": 3, "contentSchema": {}},
    {"type": "number", "minimum": 0, "maximum": 9, "exclusiveMinimum": 0, "multipleOf": 2, "format": "float"},
    {"type": "boolean", "items": INTEGER, "properties": {}},
]


def converted(schema: Any) -> tuple[str, list[str]]:
    return grammar_of(json.dumps(schema), json_schema_to_gbnf)


def by_converter(schema: Any) -> str:
    """What the converter makes of a schema as it is, but for the characters that it wrongly lets into strings."""
    grammar: str = json_schema_to_gbnf(json.dumps(schema))
    return grammar.replace(r'char ::= [^"\\]', rf"char ::= {SAFE_CHARACTER}")


def refused(schema: Any) -> str:
    """The message with its hint; the converter is not asked at all, so that it can neither hang nor use the network."""

    def never(_text: str) -> str:
        raise AssertionError("the converter was called")

    text = schema if isinstance(schema, str) else json.dumps(schema)
    with pytest.raises(UsageError) as raised:
        grammar_of(text, never)
    assert len(str(raised.value).splitlines()) == 1
    assert "the converter was called" not in str(raised.value)
    return str(raised.value)


def properties(**schemas: Any) -> Json:
    return {"type": "object", "properties": schemas}


def ignored_keywords(schema: Json) -> set[str]:
    return {re.split(r"[ ,]", sentence.removeprefix("the grammar ignores "))[0] for sentence in converted(schema)[1]}


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_without_an_ignored_keyword_the_converter_gives_the_same_grammar(schema: Json) -> None:
    grammar = by_converter(schema)
    assert converted(schema)[0] == grammar
    ignored = [name for name in schema if name not in honoured_keywords(schema)]
    assert ignored
    for name in ignored:
        rest = {other: value for other, value in schema.items() if other != name}
        assert by_converter(rest) == grammar, name


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_without_an_honoured_keyword_the_converter_gives_another_grammar(schema: Json) -> None:
    grammar = json_schema_to_gbnf(json.dumps(schema))
    # The type only chooses the branch, and beside properties or constants it says what is clear anyway.
    for name in set(honoured_keywords(schema)) & set(schema) - {"type"}:
        rest = {other: value for other, value in schema.items() if other != name}
        try:
            assert json_schema_to_gbnf(json.dumps(rest)) != grammar, name
        except (AssertionError, KeyError) as error:
            assert "Unrecognized schema" in str(error) or isinstance(error, KeyError)


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_every_ignored_keyword_is_named(schema: Json) -> None:
    ignored = {name for name in schema if name not in honoured_keywords(schema)}
    assert ignored_keywords(schema) == ignored


LEAVES = st.sampled_from(SCHEMAS)


@given(st.lists(st.tuples(st.sampled_from("abcd"), LEAVES), min_size=1), st.sampled_from(["object", "array", "any"]))
def test_what_is_left_out_makes_no_difference_at_any_depth(parts: list[tuple[str, Json]], shape: str) -> None:
    schema: Json = properties(**dict(parts))
    if shape == "array":
        schema = {"type": "array", "items": schema}
    if shape == "any":
        schema = {"anyOf": [schema, *(part for _, part in parts)]}
    assert converted(schema)[0] == by_converter(schema)


def test_each_keyword_is_named_once_with_its_first_places() -> None:
    schema = properties(**{name: {"type": "integer", "minimum": 1} for name in "abcde"}, f={"type": "null", "not": {}})
    assert converted(schema)[1] == [
        "the grammar ignores minimum at /properties/a, /properties/b, /properties/c and 2 more",
        "the grammar ignores not at /properties/f",
    ]


def test_a_misspelt_keyword_is_named_as_unknown() -> None:
    assert converted(properties(a=INTEGER) | {"requird": ["a"]})[1] == [
        "the grammar ignores requird, which is no JSON schema keyword, at the top"
    ]


def test_annotations_and_values_that_allow_everything_are_not_named() -> None:
    noted = {"title": "t", "description": "d", "default": 1, "examples": [1], "$comment": "c", "x-order": 1}
    assert converted(noted | INTEGER)[1] == []
    assert converted(noted | {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"})[1] == []
    for name, value in HARMLESS.items():
        assert converted({"enum": [1], name: value})[1] == []


def test_property_names_are_no_keywords() -> None:
    names = ["minimum", "not", "requird", "title", "$defs", "enum", "type"]
    assert converted(properties(**{name: INTEGER for name in names}))[1] == []


def test_a_required_name_without_a_property_is_named() -> None:
    assert converted(properties(a=INTEGER) | {"required": ["a", "b"]})[1] == [
        "the grammar ignores required b, which is not in properties, at the top"
    ]


def test_only_what_a_reference_reaches_is_named_and_each_definition_once() -> None:
    used, unused = {"type": "integer", "minimum": 1}, {"type": "integer", "maximum": 1, "$ref": "https://example.com"}
    reference = {"$ref": "#/$defs/used"}
    schema = properties(a=reference, b=reference) | {"$defs": {"used": used, "unused": unused}}
    assert converted(schema)[1] == ["the grammar ignores minimum at /$defs/used"]


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/my_node", "$defs": {"my_node": NODE}},
        properties(my_node={"$ref": "#/$defs/my_node"}) | {"$defs": {"my_node": NODE}},
        properties(tree={"type": "array", "items": {"$ref": "#"}}),
    ],
    ids=json.dumps,
)
def test_recursive_schemas_have_every_rule_they_use(schema: Json) -> None:
    grammar, notes = converted(schema)
    assert notes == []
    assert_rules_are_defined(grammar)
    assert "reference-0 ::=" in grammar


def assert_rules_are_defined(grammar: str) -> None:
    rules = dict(line.split(" ::= ", 1) for line in grammar.splitlines())
    for rule in rules.values():
        bare = re.sub(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]', " ", rule)
        assert set(re.findall(r"[\w-]+", bare)) <= set(rules)


def test_definitions_called_like_a_rule_or_like_each_other_stay_apart() -> None:
    definitions = {
        "string": INTEGER,
        "one": {"kind": {"type": "null"}},
        "two": {"kind": {"type": "boolean"}},
        "a/b c": NODE,
    }
    schema = properties(
        reference={"type": "object", "properties": {"0": {"enum": [1]}, "1": {"enum": [2]}}},
        text={"type": "string"},
        a={"$ref": "#/$defs/string"},
        b={"$ref": "#/$defs/one/kind"},
        c={"$ref": "#/$defs/two/kind"},
        d={"$ref": "#/$defs/a~1b%20c"},
    )
    grammar, _ = converted(schema | {"$defs": definitions | {"my_node": NODE}})
    rules = dict(line.split(" ::= ", 1) for line in grammar.splitlines())
    assert [rules[rules[f"{name}-kv"].split()[-1]] for name in "abc"] == ["integer", "null", "boolean"]


@pytest.mark.parametrize("anything", [{}, True, {"title": "Payload"}])
def test_a_schema_that_allows_anything_allows_any_value(anything: Any) -> None:
    grammar, notes = converted({"type": "array", "items": properties(a=anything) | {"additionalProperties": anything}})
    assert notes == []
    for name in ("item-a", "item-additional-value"):
        assert f"{name} ::= {name}-0 | array | string | number | boolean | null" in grammar


@pytest.mark.parametrize("schema", [{}, {"title": "t"}, {"x-a": 1}])
def test_an_empty_schema_is_any_object_as_in_llama_cpp(schema: Json) -> None:
    assert converted(schema)[0] == by_converter({})


def test_all_of_one_schema_is_that_schema() -> None:
    color = {"$defs": {"Color": {"enum": ["red", "blue"]}}}
    grammar, notes = converted(properties(a={"allOf": [{"$ref": "#/$defs/Color"}], "title": "Color"}) | color)
    assert notes == []
    assert r'"\"red\"" | "\"blue\""' in grammar


def test_parts_of_all_of_are_read_through_their_references() -> None:
    part = {"$defs": {"a": properties(x={"type": "integer", "minimum": 1}) | {"required": ["x"]}}}
    schema = {"allOf": [{"$ref": "#/$defs/a"}, {"properties": {"y": INTEGER}}]} | part
    grammar, notes = converted(schema)
    assert grammar == by_converter(schema)
    assert notes == [
        "the grammar ignores required at /$defs/a",
        "the grammar ignores minimum at /$defs/a/properties/x",
    ]
    assert converted(properties(z=schema, x={"$ref": "#/$defs/a"}) | part)[1] == notes


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ('{"type": "object",\n "a" 1}', "Expecting ':' delimiter at line 2, column 6"),
        ("", "Expecting value at line 1, column 1"),
        ('{"const": NaN}', "NaN is no JSON number"),
        ('{"a":' * 100_000, "is not JSON"),
        ("[1]", "is not an object"),
        ("true", "is not an object"),
        ({"type": "objekt"}, '"objekt" at /type is no type (one of object,'),
        (properties(a={"type": ["string", "any"]}), '"any" at /properties/a/type is no type'),
        ({"type": "char"}, '"char" at /type is no type'),
        ({"type": {"a": 1}}, "is no type"),
        ({"type": []}, "/type must be a list that is not empty"),
        (properties(a={"minimum": 3}), "the schema at /properties/a has no type"),
        (properties(**{"a/b": False}), "no schema that a grammar can follow at /properties/a~1b"),
        ({"properties": []}, "/properties is no JSON object of schemas"),
        ({"type": "object", "properties": {}, "required": "a"}, "/required is no list of property names"),
        (properties(**{"*": INTEGER}), 'a property cannot be called "*"'),
        (properties(**{"": INTEGER}), 'a property cannot be called ""'),
        (properties(**{"$ref": INTEGER}), 'a property cannot be called "$ref"'),
        (properties(**{'a"b\n': INTEGER}), "cannot be part of a grammar"),
        ({"enum": []}, "/enum must be a list that is not empty"),
        ({"enum": "abc"}, "/enum must be a list that is not empty"),
        ({"enum": ["a", 'b"c']}, "at /enum/1 cannot be part of a grammar"),
        ({"const": "a\\b"}, "at /const cannot be part"),
        ({"const": "😀"}, "at /const cannot be part"),
        ('{"const": 1e400}', "cannot turn the JSON schema into a grammar"),
        ({"const": {"$ref": "https://example.com"}}, "has a $ref"),
        ({"anyOf": []}, "/anyOf must be a list that is not empty"),
        ({"oneOf": INTEGER}, "/oneOf must be a list that is not empty"),
        ({"items": []}, "/items must be a list that is not empty"),
        ({"items": False}, "no schema that a grammar can follow at /items"),
        ({"items": INTEGER, "minItems": 3, "maxItems": 1}, "minItems is more than maxItems at the top"),
        ({"items": INTEGER, "minItems": -1}, "minItems at the top is -1"),
        (
            {"items": INTEGER, "maxItems": MOST_REPEATS + 1},
            "maxItems at the top is 1001 (a grammar counts from 0 to 1000)",
        ),
        ({"type": "string", "minLength": 1.5}, "minLength at the top is 1.5"),
        ({"type": "string", "minLength": True}, "minLength at the top is true"),
        ({"allOf": []}, "/allOf must be a list"),
        ({"allOf": [INTEGER, INTEGER]}, "allOf can only join objects with properties, unlike /allOf/0"),
        ({"allOf": [properties(a=INTEGER), properties(a=INTEGER)]}, "a is a property of two parts at /allOf"),
        (
            {"allOf": [{"anyOf": [properties(a=INTEGER), properties(a=INTEGER)]}, properties(b=INTEGER)]},
            "a is a property of two parts at /allOf",
        ),
        ({"$ref": "https://example.com/a.json"}, "the $ref https://example.com/a.json is on the web"),
        (properties(a={"$ref": "http://example.com"}), "the $ref http://example.com is on the web"),
        ({"$ref": "#/$defs/a"}, "there is no #/$defs/a for a $ref"),
        ({"$ref": "other.json"}, "there is no other.json for a $ref"),
        ({"$ref": 5}, "$ref at /$ref is no text"),
        ({"$ref": "#"}, "the $ref # leads back to itself"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, INTEGER]}}}, "leads back to itself"),
        ({"allOf": [{"properties": {"a": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}}, {"$ref": "#"}]}, "unlike"),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": properties(b={"allOf": [{"$ref": "#/$defs/a"}, {"properties": {}}]})}},
            "an allOf contains itself",
        ),
        ({"type": "a\nb\u2028c"}, r'"a\nb\u2028c" at /type'),
    ],
)
def test_what_no_grammar_can_say_is_refused_in_one_line(schema: Any, message: str) -> None:
    assert message in refused(schema)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (5, "is no text"),
        (r"^\D+$", r"uses \D, which no grammar has (write it another way"),
        (r"^[\W-]$", "uses [, which"),
        (r"a\b", r"uses \b, which"),
        ("a|b", "has alternatives (put them into parentheses"),
        ("^(?:a)$", "uses (?, which"),
        ("^a|b$", "has alternatives (put them into parentheses"),
        ("^a}$", "uses }, which"),
        ("^a]$", "uses ], which"),
        ("^(a$", "is broken"),
        ("^+$", "is broken"),
        ("^a{3,2}$", "is broken"),
        ("^a{x}$", "uses {, which"),
        ('^"$', 'uses ", which'),
        ("^a$b$", "uses $, which"),
        ("^a{99999999999}$", "is broken"),
        ("^a{1001}$", "is too much"),
        ("^\ud800$", r"uses \ud800, which"),
        ("^[\ud800]$", "uses [, which"),
        ("^a\nb$", r"uses \n, which"),
    ],
)
def test_patterns_that_the_converter_gets_wrong_are_refused(pattern: Any, message: str) -> None:
    answer = refused(properties(a={"type": "string", "pattern": pattern}))
    assert message in answer
    assert "/properties/a/pattern" in answer


@pytest.mark.parametrize(
    "pattern",
    ["^$", "^(a|b)+$", "^[a-z]{2,3}-[0-9]{4}$", "^[.][.]$", "^[[]$", r"^[\u4e00-\u9fa5]*$", "^é+$"],
)
def test_other_patterns_go_to_the_converter_as_they_are(pattern: str) -> None:
    schema = {"type": "string", "pattern": pattern}
    assert converted(schema) == (json_schema_to_gbnf(json.dumps(schema)), [])


@pytest.mark.parametrize("pattern", ["^.*$", "^[^a]+$", "^a.b$", r'^[^"\\]$'])
def test_a_pattern_cannot_end_the_json_string_it_stands_in(pattern: str) -> None:
    grammar, notes = converted({"type": "string", "pattern": pattern})
    assert notes == []
    for characters in re.findall(r"\[\^.*?\]", grammar):
        assert characters.endswith(r'"\\\x00-\x1F]')


ANYTHING = f"{SAFE_CHARACTER}*"


@pytest.mark.parametrize(
    ("pattern", "plain"),
    [
        (r"^\d{5}$", "^[0-9]{5}$"),
        (r"^[\w.+-]+@[\w-]+\.com$", "^[A-Za-z0-9_.+-]+@[A-Za-z0-9_-]+[.]com$"),
        (r"^\(ab?\)+\s$", "^[(]ab?[)]+[ ]$"),
        (r"^a\$", f"^a[$]{ANYTHING}$"),
        (r"^https?:\/\/", f"^https?:[/][/]{ANYTHING}$"),
        ("[A-Z]+", f"^{ANYTHING}[A-Z]+{ANYTHING}$"),
        ("^", f"^{ANYTHING}$"),
        (r"^[\].\[]$", r"^[\].\[]$"),
    ],
)
def test_patterns_are_written_in_what_the_converter_understands(pattern: str, plain: str) -> None:
    assert converted({"type": "string", "pattern": pattern})[0] == by_converter({"type": "string", "pattern": plain})


@pytest.mark.parametrize("pattern", ['^["a]$', "^[ -~]$", r"^[\n]$"])
def test_a_pattern_that_asks_for_what_json_must_escape_is_refused(pattern: str) -> None:
    assert "allows a quote, a backslash or a control character" in refused({"type": "string", "pattern": pattern})


@pytest.mark.parametrize(
    "error", [KeyError("a"), ValueError("a\nb"), AssertionError(), RecursionError(), TypeError("x" * 1000)]
)
def test_whatever_the_converter_raises_becomes_one_short_line(error: Exception) -> None:
    def convert(_text: str) -> str:
        raise error

    with pytest.raises(UsageError) as raised:
        grammar_of("{}", convert)
    assert len(str(raised.value).splitlines()) == 1
    assert len(str(raised.value)) < 300


HONOURED = sorted({name for schema in SCHEMAS for name in honoured_keywords(schema)} | {"$ref"})
LITTLE_TEXTS = ["string", "object", "array", "^a$", "#", "date", "https://example.com"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from(LITTLE_TEXTS),
        lambda values: st.lists(values, max_size=3) | st.dictionaries(st.sampled_from(HONOURED), values, max_size=4),
        max_leaves=8,
    )
)
def test_any_json_gives_a_grammar_or_one_line(value: Any) -> None:
    before = copy.deepcopy(value)
    try:
        grammar, _ = converted(value)
    except UsageError as error:
        assert len(str(error).splitlines()) == 1
        assert "cannot turn the JSON schema" not in str(error)
    else:
        assert_rules_are_defined(grammar)
    assert value == before
