"""JSON schemas: what the converter honours and what is named, what is refused, and that grammars are well formed."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_cpp.llama_grammar import LlamaGrammar, json_schema_to_gbnf

from lacli.errors import UsageError
from lacli.text.gbnf import SAFE_CHARACTER, literal
from lacli.text.json_schema import HARMLESS, grammar_of, honoured_keywords
from tests.text.test_gbnf import as_pattern

Json = dict[str, Any]
INTEGER, TEXT = {"type": "integer"}, {"type": "string"}
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/my_node"}, "value": INTEGER}}

# Every branch of the converter, with a keyword it honours and one it does not.
SCHEMAS: list[Json] = [
    {"oneOf": [INTEGER], "anyOf": [{"type": "null"}], "type": "string", "properties": {}},
    {"anyOf": [INTEGER, {"type": "null"}], "type": "string", "minLength": 2},
    {"const": "a", "enum": ["b"], "minLength": 3, "pattern": "^b$"},
    {"enum": ["a", 1, None], "minimum": 3, "not": {"const": 1}},
    {
        "properties": {"a": INTEGER, "b": TEXT},
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
    {"type": "array", "prefixItems": [INTEGER], "minItems": 2, "maxItems": 0},
    {"items": [INTEGER], "minItems": 2, "maxItems": 0, "additionalItems": INTEGER},
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

    with pytest.raises(UsageError) as raised:
        grammar_of(schema if isinstance(schema, str) else json.dumps(schema), never)
    message = str(raised.value)
    assert len(message.splitlines()) == 1 and "the converter was called" not in message
    return message


def properties(**schemas: Any) -> Json:
    return {"type": "object", "properties": schemas}


def rules_of(grammar: str) -> dict[str, str]:
    """The rules by their names, all those they use among them."""
    rules = dict(line.split(" ::= ", 1) for line in grammar.splitlines())
    for rule in rules.values():
        bare = re.sub(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|\{[\d,]+\}', " ", rule)
        assert set(re.findall(r"[\w-]+", bare)) <= set(rules)
    return rules


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_exactly_the_keywords_that_change_no_grammar_are_named(schema: Json) -> None:
    grammar, sentences = converted(schema)
    assert grammar == by_converter(schema)
    named = {re.split(r"[ ,]", sentence.removeprefix("the schema's "))[0] for sentence in sentences}
    ignored = {name for name in schema if name not in honoured_keywords(schema)}
    assert named == ignored != set()
    # The type only chooses the branch, and beside properties or constants it says what is clear anyway.
    for name in set(schema) - {"type"}:
        rest = {other: value for other, value in schema.items() if other != name}
        try:
            assert (by_converter(rest) == grammar) == (name in ignored), name
        except (AssertionError, KeyError) as error:
            assert "Unrecognized schema" in str(error) or isinstance(error, KeyError)


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(SCHEMAS)), min_size=1),
    st.sampled_from(["object", "array", "any"]),
)
def test_what_is_left_out_makes_no_difference_at_any_depth(parts: list[tuple[str, Json]], shape: str) -> None:
    schema: Json = properties(**dict(parts))
    if shape == "array":
        schema = {"type": "array", "items": schema}
    if shape == "any":
        schema = {"anyOf": [schema, *(part for _, part in parts)]}
    assert converted(schema)[0] == by_converter(schema)


NOTED = {"title": "t", "description": "d", "default": 1, "examples": [1], "$comment": "c", "x-order": 1}
MINIMUM = {"type": "number", "minimum": 1}


@pytest.mark.parametrize(
    ("schema", "sentences"),
    [
        (
            properties(**dict.fromkeys("abcde", MINIMUM), f={"type": "null", "not": {}}),
            [
                "the schema's minimum is not enforced at /properties/a, /properties/b, /properties/c and 2 more",
                "the schema's not is not enforced at /properties/f",
            ],
        ),
        (INTEGER | {"requird": 1}, ["the schema's requird is not enforced at the top"]),
        ({"type": "string", "maxLength": 2000}, ["the schema's maxLength above 1,000 is not enforced at the top"]),
        (
            properties(a=INTEGER) | {"required": ["a", "b"]},
            ["the schema's required b, which is not in properties, is not enforced at the top"],
        ),
        (NOTED | {"$schema": "https://json-schema.org/draft/2020-12/schema"} | INTEGER, []),
        (properties(**dict.fromkeys(["minimum", "not", "requird", "title", "$defs", "enum", "type"], INTEGER)), []),
        (
            properties(a={"$ref": "#/$defs/used"}, b={"$ref": "#/$defs/used"})
            | {"$defs": {"used": MINIMUM, "unused": {"maximum": 1, "$ref": "https://example.com"}}},
            ["the schema's minimum is not enforced at /$defs/used"],
        ),
        *(({"enum": [1], name: value}, []) for name, value in HARMLESS.items()),
        ({"type": ["string", "null"], "maxLength": 3, "not": {}}, ["the schema's not is not enforced at the top"]),
    ],
    ids=str,
)
def test_what_is_ignored_is_named_once_with_its_places_and_nothing_else_is(schema: Json, sentences: list[str]) -> None:
    assert converted(schema)[1] == sentences


@pytest.mark.parametrize(
    ("keywords", "alternatives"),
    [
        ({"maxLength": 3}, {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]}),
        ({"type": ["null", "integer"], "minimum": 2}, {"anyOf": [{"type": "null"}, INTEGER | {"minimum": 2}]}),
        ({"type": ["array", "null"], "items": TEXT}, {"anyOf": [{"type": "array", "items": TEXT}, {"type": "null"}]}),
        (properties(a=TEXT) | {"type": ["object", "null"]}, {"anyOf": [properties(a=TEXT), {"type": "null"}]}),
        ({"enum": ["a", None]}, {"enum": ["a", None]}),
        ({"title": "t"}, {"type": ["string", "null"]}),
    ],
    ids=json.dumps,
)
def test_of_several_types_each_keeps_to_the_keywords_about_it(keywords: Json, alternatives: Json) -> None:
    assert converted({"type": ["string", "null"], **keywords}) == converted(alternatives)


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
    assert notes == [] and "reference-0" in rules_of(grammar)


def test_definitions_called_like_a_rule_or_like_each_other_stay_apart() -> None:
    definitions = {
        "string": INTEGER,
        "one": {"kind": {"type": "null"}},
        "two": {"kind": {"type": "boolean"}},
        "a/b c": NODE,
        "my_node": NODE,
    }
    schema = properties(
        reference={"type": "object", "properties": {"0": {"enum": [1]}, "1": {"enum": [2]}}},
        text=TEXT,
        a={"$ref": "#/$defs/string"},
        b={"$ref": "#/$defs/one/kind"},
        c={"$ref": "#/$defs/two/kind"},
        d={"$ref": "#/$defs/a~1b%20c"},
    )
    rules = rules_of(converted(schema | {"$defs": definitions})[0])
    assert [rules[rules[f"{name}-kv"].split()[-1]] for name in "abc"] == ["integer", "null", "boolean"]


@pytest.mark.parametrize("anything", [{}, True, {"title": "Payload"}, {"x-a": 1}])
def test_a_schema_that_allows_anything_allows_any_value_and_at_the_top_any_object(anything: Any) -> None:
    grammar, notes = converted({"type": "array", "items": properties(a=anything) | {"additionalProperties": anything}})
    assert notes == []
    for name in ("item-a", "item-additional-value"):
        assert f"{name} ::= {name}-0 | array | string | number | boolean | null" in grammar
    assert anything is True or converted(anything)[0] == by_converter({})


def test_parts_of_all_of_are_read_through_their_references_and_one_alone_is_that_schema() -> None:
    color = {"$defs": {"Color": {"enum": ["red", "blue"]}}}
    grammar, notes = converted(properties(a={"allOf": [{"$ref": "#/$defs/Color"}], "title": "Color"}) | color)
    assert notes == [] and r'"\"red\"" | "\"blue\""' in grammar
    part = {"$defs": {"a": properties(x=MINIMUM) | {"required": ["x", "w"]}}}
    schema = {"allOf": [{"$ref": "#/$defs/a"}, {"properties": {"y": INTEGER}}]} | part
    grammar, notes = converted(schema)
    assert grammar == by_converter(schema)
    assert notes == [
        "the schema's required is not enforced at /$defs/a",
        "the schema's minimum is not enforced at /$defs/a/properties/x",
    ]
    missing = "the schema's required w, which is not in properties, is not enforced at /$defs/a"
    assert converted(properties(z=schema, x={"$ref": "#/$defs/a"}) | part)[1] == [*notes, missing]
    choice = {"anyOf": [properties(a=INTEGER) | {"required": ["a"]}]}
    whole = properties(b=INTEGER) | {"required": ["b"]}
    assert converted({"allOf": [whole, choice]})[1] == ["the schema's required is not enforced at /allOf/1/anyOf/0"]


def test_a_list_of_given_items_has_their_number_and_other_bounds_are_told() -> None:
    pair = {"type": "array", "prefixItems": [INTEGER, INTEGER]}
    assert converted(pair | {"minItems": 2, "maxItems": 2})[1] == []
    assert converted({"items": [INTEGER, INTEGER], "minItems": 2, "maxItems": 2})[1] == []
    assert converted(pair | {"minItems": 3, "maxItems": 1})[1] == [
        "the schema's minItems is not enforced at the top",
        "the schema's maxItems is not enforced at the top",
    ]


LIST = "it must be a list that is not empty"


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ('{"type": "object",\n "a" 1}', "Expecting ':' delimiter: line 2 column 6"),
        ("", "Expecting value: line 1 column 1"),
        ('{"const": NaN}', "NaN is no JSON number"),
        ('{"a":' * 100_000, "is not JSON"),
        ("[1]", "is not an object"),
        ({"type": "objekt"}, 'the JSON schema: /type is "objekt" (it must be one of object,'),
        (properties(a={"type": ["string", "any"]}), '/properties/a/type is ["string", "any"] (it must be one of'),
        ({"type": {"a": 1}}, "it must be one of object"),
        ({"type": []}, "it must be one of object"),
        ({"type": "a\nb\u2028c"}, r'/type is "a\nb\u2028c"'),
        (properties(a={"minimum": 3}), "no type at /properties/a"),
        (properties(**{"a/b": False}), "nothing that a grammar can follow at /properties/a~1b"),
        ({"properties": []}, "/properties is [] (it must be an object of schemas)"),
        ({"type": "object", "properties": {}, "required": "a"}, '/required is "a" (it must be a list of names)'),
        (properties(**{"*": INTEGER}), 'a property cannot be called "*"'),
        (properties(**{"": INTEGER}), 'a property cannot be called ""'),
        (properties(**{"$ref": INTEGER}), 'a property cannot be called "$ref"'),
        (properties(**{'a"b\n': INTEGER}), "cannot be part of a grammar"),
        *((name, LIST) for name in ('{"enum": []}', '{"enum": "abc"}', '{"anyOf": []}', '{"oneOf": {}}')),
        *((name, LIST) for name in ('{"allOf": []}', '{"prefixItems": []}')),
        ({"enum": ["a", "\ud83d"]}, "the constant at /enum is no UTF-8 text"),
        ({"type": "integer", "minimum": 3, "exclusiveMaximum": 3}, "no whole number is between the bounds at the top"),
        ('{"const": 1e400}', "cannot turn the JSON schema into a grammar"),
        ({"const": {"$ref": "https://example.com"}}, "has a $ref"),
        ({"items": []}, "/items is [] (it must be a schema or a list"),
        ({"items": False}, "nothing that a grammar can follow at /items"),
        ({"items": INTEGER, "minItems": 3, "maxItems": 1}, "minItems is more than maxItems at the top"),
        ({"items": INTEGER, "minItems": -1}, "/minItems is -1 (it must be a whole number from 0 to 1000)"),
        ({"items": INTEGER, "minItems": 1001}, "/minItems is 1001"),
        ({"type": "string", "minLength": 1.5}, "/minLength is 1.5"),
        ({"type": "string", "minLength": True}, "/minLength is true"),
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
        ({"$ref": 5}, "/$ref is 5 (it must be a text)"),
        ({"$ref": "#"}, "the $ref # leads back to itself"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, INTEGER]}}}, "leads back to itself"),
        ({"allOf": [{"properties": {"a": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}}, {"$ref": "#"}]}, "unlike"),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": properties(b={"allOf": [{"$ref": "#/$defs/a"}, {"properties": {}}]})}},
            "an allOf contains itself",
        ),
    ],
)
def test_what_no_grammar_can_say_is_refused_in_one_line(schema: Any, message: str) -> None:
    assert message in refused(schema)


@pytest.mark.parametrize(
    ("message", "patterns"),
    [
        ("it must be a text", [5]),
        ("which no grammar has (write it another way", [r"^[\W-]$", r"a\b", "^(?=a)$", "^a}$", "^a]$"]),
        ("takes back nothing", ["^a++$", "^(a|b)*+b$"]),
        ("which no grammar has", ["^a{x}$", '^"$', "^a$b$", "^\ud800$", "^[\ud800]$", "^a\nb$"]),
        ("has alternatives (put them into parentheses", ["a|b", "^a|b$"]),
        ("is broken", ["^(a$", "^+$", "^a{3,2}$", "^a{99999999999}$"]),
        ("is too much", ["^a{1001}$"]),
        ("allows a quote, a backslash or a control character", ['^["a]$', "^[ -~]$", r"^[\n]$"]),
    ],
)
def test_patterns_that_the_converter_gets_wrong_are_refused(message: str, patterns: list[Any]) -> None:
    for pattern in patterns:
        answer = refused(properties(a={"type": "string", "pattern": pattern}))
        assert message in answer and "/properties/a/pattern" in answer


ANYTHING = f"{SAFE_CHARACTER}*"


@pytest.mark.parametrize(
    ("pattern", "plain"),
    [
        *((p, p) for p in ("^$", "^(a|b)+$", "^[a-z]{2,3}-[0-9]{4}$", "^[.][.]$", "^[[]$", r"^[\u4e00-\u9fa5]*$")),
        ("^é+$", "^é+$"),
        (r"^\d{5}$", "^[0-9]{5}$"),
        (r"^[\w.+-]+@[\w-]+\.com$", "^[A-Za-z0-9_.+-]+@[A-Za-z0-9_-]+[.]com$"),
        (r"^\(ab?\)+\s$", "^[(]ab?[)]+[ ]$"),
        (r"^a\$", f"^a[$]{ANYTHING}$"),
        (r"^https?:\/\/", f"^https?:[/][/]{ANYTHING}$"),
        ("[A-Z]+", f"^{ANYTHING}[A-Z]+{ANYTHING}$"),
        ("^", f"^{ANYTHING}$"),
        (r"^[\].\[]$", r"^[\].\[]$"),
        ("^a+?(?:b|c)*?[?]{1,2}?d??$", "^a+(b|c)*[?]{1,2}d?$"),
        (r"^\D\W$", r'^[^0-9"\\\x00-\x1F][^A-Za-z0-9_"\\\x00-\x1F]$'),
        # None ends the JSON string that it stands in.
        ("^.*$", f"^{SAFE_CHARACTER}*$"),
        ("^[^a]+b.$", rf'^[^a"\\\x00-\x1F]+b{SAFE_CHARACTER}$'),
    ],
)
def test_patterns_are_written_in_what_the_converter_understands(pattern: str, plain: str) -> None:
    grammar, notes = converted({"type": "string", "pattern": pattern})
    assert (grammar, notes) == (by_converter({"type": "string", "pattern": plain}), [])


@pytest.mark.parametrize(
    "error", [KeyError("a"), ValueError("a\nb"), AssertionError(), RecursionError(), TypeError("x" * 1000)]
)
def test_whatever_the_converter_raises_becomes_one_short_line(error: Exception) -> None:
    def convert(_text: str) -> str:
        raise error

    with pytest.raises(UsageError) as raised:
        grammar_of("{}", convert)
    assert len(str(raised.value).splitlines()) == 1 and len(str(raised.value)) < 300


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
        rules_of(converted(value)[0])
    except UsageError as error:
        assert len(str(error).splitlines()) == 1 and "cannot turn the JSON schema" not in str(error)
    assert value == before


def test_constants_are_kept_whatever_stands_in_them() -> None:
    values = ['say "hi"', "a\\b", "two\nlines", "😀 é", {"a": ['"']}, "plain", 1]
    grammar, sentences = converted({"type": "object", "properties": {"x": {"enum": values}, "y": {"const": values[0]}}})
    rules, alternatives = (
        rules_of(grammar),
        " | ".join(literal(json.dumps(each, ensure_ascii=False)) for each in values),
    )
    assert rules["x"] == alternatives and rules["y"] == literal(json.dumps(values[0])) and not sentences
    assert LlamaGrammar.from_string(grammar, verbose=False)


@pytest.mark.parametrize(
    ("bounds", "inside", "outside"),
    [
        ({"minimum": 3, "maximum": 99}, ["3", "10", "99"], ["2", "100", "-3", "03"]),
        ({"minimum": 2.5, "exclusiveMaximum": 10}, ["3", "9"], ["2", "10"]),
        ({"exclusiveMinimum": -3, "maximum": 0}, ["-2", "0"], ["-3", "1", "-0"]),
        ({"minimum": 1}, ["1", "1234567890123456"], ["0", "-1"]),
        ({"maximum": -5}, ["-5", "-77"], ["-4", "5"]),
    ],
)
def test_whole_numbers_keep_their_bounds(bounds: Json, inside: list[str], outside: list[str]) -> None:
    grammar, sentences = converted(properties(a=INTEGER | bounds, b={"anyOf": [INTEGER | bounds, {"type": "null"}]}))
    rules = rules_of(grammar)
    whole = re.compile(as_pattern(rules["a"].removesuffix(" space")))
    assert rules["b-0"] == rules["a"] and not sentences
    assert all(map(whole.fullmatch, inside)) and not any(map(whole.fullmatch, outside))
    assert LlamaGrammar.from_string(grammar, verbose=False)
