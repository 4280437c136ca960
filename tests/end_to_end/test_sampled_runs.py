"""`lacli run` with sampling flags: what a person gets from seeds, grammars and schemas, and one line for every slip."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.program import Done, call

QUESTION = ("run", "-q", "-c", "512", "-p", "Explain the function os.path.commonprefix.")
WARM = ("--temp", "0.9", "-s", "7")
MODES = ("plain", "jacobi", "lookup", "lookahead")
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


def slip(*flags: str, code: int = 2) -> str:
    done = call(*QUESTION, *flags)
    assert (done.code, done.out) == (code, ""), done
    assert re.fullmatch(r"lacli: \S.* \(\S.*\)\n", done.err), done.err
    return done.err


def test_a_seed_repeats_an_answer_and_is_named_where_it_was_chosen_at_random() -> None:
    chosen = asked("--temp", "0.9", "--mode", "plain")
    again = asked("--temp", "0.9", "--mode", "plain", "-s", str(chosen["seed"]))
    assert again["text"] == chosen["text"]
    assert asked("--temp", "0.9", "--mode", "plain")["seed"] != chosen["seed"]


def test_greedy_decoding_has_no_seed() -> None:
    assert asked("-s", "7")["seed"] is None


def test_stats_name_the_flags_that_repeat_the_answer() -> None:
    done = call(*QUESTION, "-n", "4", "--stats", *WARM, "--top-k", "5", "--ignore-eos", "-l", "5-inf")
    assert "--temp 0.9 --top-k 5 --ignore-eos --seed 7 --logit-bias 5-inf" in done.err


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SCHEMAS)
def test_an_answer_to_a_schema_parses_and_validates(name: str, mode: str) -> None:
    found = asked("-j", json.dumps(SCHEMAS[name]), *WARM, "--mode", mode, "-n", "400")
    if found["finish_reason"] == "eog":
        jsonschema.validate(json.loads(found["text"]), SCHEMAS[name])
    assert found["finish_reason"] == "eog" or name == "any object"


@pytest.mark.parametrize("seed", ["6", "7", "8", "9"])
def test_strings_hold_no_character_that_json_must_escape(seed: str) -> None:
    for schema in ({"type": "string"}, {"type": "string", "pattern": "^.{3}[^a-z]{2}$"}):
        found = asked("-j", json.dumps(schema), "--temp", "1.5", "-s", seed, "--mode", "plain", "-n", "400")
        if found["finish_reason"] == "eog":
            jsonschema.validate(json.loads(found["text"]), schema)


def test_grammar_and_schema_come_from_files_too(tmp_path: Path) -> None:
    (tmp_path / "grammar").write_text('\ufeffroot ::= "yes" | "no"')
    (tmp_path / "schema").write_text('{"const": 3}')
    assert asked("--grammar-file", str(tmp_path / "grammar"))["text"] in ("yes", "no")
    assert asked("-jf", str(tmp_path / "schema"))["text"].strip() == "3"


def test_what_a_schema_asks_and_a_grammar_cannot_is_named() -> None:
    schema = '{"type": "array", "items": {"type": "integer"}, "maxItems": 2, "uniqueItems": true}'
    # Also where notes are not wanted: what comes out may not be what was asked for.
    for quiet in ((), ("-q",)):
        done = call("run", *quiet, "-n", "9", "-p", "A number.", "-j", schema)
        assert done.err.count("uniqueItems") == 1
    assert done.err.count("\n") == 1


def test_rejection_answers_and_another_seed_differs() -> None:
    # Mode auto guesses by the clock, and with other guesses rejection draws another text.
    rejection = ("--verify", "rejection", "--mode", "lookup")
    first = asked(*rejection, *WARM)
    assert first["verify"] == "rejection" and first["text"]
    assert asked(*rejection, *WARM)["text"] == first["text"]
    assert asked(*rejection, "--temp", "0.9", "-s", "8")["text"] != first["text"]


def test_ignoring_the_end_goes_on_to_the_limit() -> None:
    assert asked("--ignore-eos", "-n", "60")["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--temp", "-1"], "--temp is -1 (--temp must be at least 0"),
        (["--temp", "nan"], "--temp is nan"),
        (["--top-p", "1.5"], "--top-p must be at most 1"),
        (["--min-p", "-0.1"], "--min-p must be at least 0"),
        (["--repeat-penalty", "0"], "--repeat-penalty is 0"),
        (["--dry-base", "0.5"], "--dry-base must be at least 1"),
        (["--repeat-last-n", "-2"], "--repeat-last-n must be at least -1"),
        (["--mirostat", "3", "--temp", "1"], "--mirostat must be at most 2"),
        (["--mirostat", "2"], "--mirostat draws nothing at --temp 0"),
        (["--mirostat", "2", "--temp", "1", "--verify", "rejection"], "--verify rejection needs the distribution"),
        (["-s", "99999999999"], "--seed is 99999999999"),
        (["--temp", "warm"], "'--temp' / '--temperature': Input should be a valid number"),
        (["--verify", "hope"], "'hope' is not one of"),
        (["-l", "five"], "--logit-bias 'five'"),
        (["-l", "5+inf"], "--logit-bias of token 5"),
        (["-l", "99999+1"], "--logit-bias names token 99999, and the model has 4096"),
        (["--grammar", "root ::= [a", "-j", "{}"], "--grammar and --json-schema are both given"),
        (["--grammar", 'root ::= "a"', "--grammar-file", "x"], "--grammar and --grammar-file are both given"),
        (["--grammar", 'root ::= "a'], "the grammar cannot be used: unexpected end of input"),
        (["--grammar", 'root ::= "a"\n\nb c'], "the grammar cannot be used: line 3: expecting ::="),
        (["--grammar", 'root ::= thing'], "undefined rule identifier 'thing'"),
        (["--grammar", '# words'], "the grammar cannot be used: it has no rules"),
        (["--grammar", ''], "--grammar is empty"),
        (["-j", " "], "--json-schema is empty"),
        (["--grammar", 'root ::= "a"{3,2}'], "{3,2} repeats at least 3 and at most 2 times"),
        (["--grammar", "root ::= " + "(" * 2000 + '"a"' + ")" * 2000], "more than 1000 parentheses"),
        (["--grammar", "\n".join(f'r{n} ::= "a"' for n in range(6000))], "more than 5000 rules"),
        (["--temp", "1e-38"], "--temp must be 0 or at least"),
        (["-l", "5+1e39"], "--logit-bias of token 5"),
        (["--strict", "--verify", "rejection", *WARM], "draws other numbers in every mode"),
        (["-j", "{"], "the JSON schema is not JSON"),
        (["-j", "[]"], "the JSON schema is not an object"),
        (["-j", '{"type": "strange"}'], "strange"),
        (["-j", '{"$ref": "#/$defs/nowhere"}'], "nowhere"),
    ],
)  # fmt: skip
def test_a_slip_is_one_line_and_code_2(flags: list[str], words: str) -> None:
    assert words in slip(*flags)


def test_a_grammar_file_that_is_not_there_or_empty(tmp_path: Path) -> None:
    assert "cannot read nosuch" in slip("--grammar-file", "nosuch", code=1)
    (tmp_path / "empty").write_text("\n")
    assert "is empty" in slip("--grammar-file", str(tmp_path / "empty"))


@pytest.mark.parametrize("output", [[], ["--json"]])
def test_a_grammar_that_allows_nothing_is_one_line_and_no_half_answer(output: list[str]) -> None:
    done: Done = call(*QUESTION, "--grammar", "root ::= <[5]>", "-l", "5-inf", *output)
    assert done.code == 1
    assert (done.out, done.err.count("\n")) == ("", 1)
    assert "the grammar allows no token here" in done.err


def test_a_nul_in_a_grammar_is_seen(tmp_path: Path) -> None:
    (tmp_path / "grammar").write_text('root ::= "a"\0 and more')
    assert "a NUL character" in slip("--grammar-file", str(tmp_path / "grammar"))


def test_verbose_leaves_the_complaint_about_a_grammar_readable() -> None:
    done = call("run", "-v", "-p", "Hi", "--grammar", 'root ::= "a')
    assert "the grammar cannot be used: unexpected end of input (" in done.err.splitlines()[-1]


@pytest.mark.parametrize("mode", MODES)
def test_a_dead_end_behind_guesses_leaves_the_same_text_in_every_mode(mode: str) -> None:
    grammar = 'root ::= "    self._value = value\\n"'
    prompt = "Repeat:\n    self._value = value\n    self._value = value\n"
    done = call("run", "-q", "-p", prompt, "--grammar", grammar, "--ignore-eos", "--mode", mode)
    assert (done.code, done.out) == (1, "    self._value = value\n")


def test_a_grammar_that_ends_nowhere_leaves_the_text_before_it_whole() -> None:
    done = call(*QUESTION, "--grammar", 'root ::= "abc"', "--ignore-eos")
    assert (done.code, done.out) == (1, "abc\n")
    assert "the grammar allows no token here" in done.err
