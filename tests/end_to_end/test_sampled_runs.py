"""`lacli run` with sampling flags: answers with seeds, grammars and schemas, and grammars without a next token."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from tests.program import call

QUESTION = ("run", "-q", "-c", "512", "-p", "Explain the function os.path.commonprefix.")
WARM = ("--temp", "0.9", "-s", "7")
MODES = ("plain", "lookahead")
SCHEMAS: dict[str, dict[str, Any]] = {
    "any object": {},
    "short strings": {"type": "array", "items": {"type": "string", "maxLength": 8}, "minItems": 2, "maxItems": 3},
    "a person": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"enum": [1, 2, 3]},
            "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 2},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "a choice": {"anyOf": [{"type": "boolean"}, {"const": "neither"}, {"type": "null"}]},
    "a date": {"type": "string", "format": "date"},
}


def asked(*flags: str) -> dict[str, Any]:
    done = call(*QUESTION, "--json", "-n", "48", *flags)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_a_seed_repeats_an_answer_and_is_named_if_it_was_chosen_at_random() -> None:
    chosen = asked("--temp", "0.9", "--mode", "plain")
    again = asked("--temp", "0.9", "--mode", "plain", "-s", str(chosen["seed"]))
    assert again["text"] == chosen["text"]
    assert asked("--temp", "0.9", "--mode", "plain")["seed"] != chosen["seed"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SCHEMAS)
def test_an_answer_to_a_schema_parses_and_validates(name: str, mode: str) -> None:
    found = asked("-j", json.dumps(SCHEMAS[name]), *WARM, "--mode", mode, "-n", "400")
    if found["finish_reason"] == "eog":
        jsonschema.validate(json.loads(found["text"]), SCHEMAS[name])
    assert found["finish_reason"] == "eog" or name == "any object"


def test_rejection_answers_and_another_seed_differs() -> None:
    # Mode auto's drafts depend on the clock, and with other drafts rejection draws another text.
    rejection = ("--verify", "rejection", "--mode", "lookup")
    first = asked(*rejection, *WARM)
    assert first["verify"] == "rejection" and first["text"]
    assert asked(*rejection, *WARM)["text"] == first["text"]
    assert asked(*rejection, "--temp", "0.9", "-s", "8")["text"] != first["text"]


@pytest.mark.parametrize("mode", MODES)
def test_a_dead_end_after_drafts_leaves_the_same_text_in_every_mode(mode: str) -> None:
    grammar = 'root ::= "    self._value = value\\n"'
    prompt = "Repeat:\n    self._value = value\n    self._value = value\n"
    done = call("run", "-q", "-p", prompt, "--grammar", grammar, "--ignore-eos", "--mode", mode)
    assert (done.code, done.out) == (1, "    self._value = value\n")
