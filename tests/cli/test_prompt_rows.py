"""The rows of --prompts: conversations, requests of OpenAI's batch files, and bad rows that stop no others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lacli.cli.options import PromptOptions
from lacli.cli.prompts import PromptRow, read_rows
from lacli.errors import LacliError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.terminal.screen import Screen
from tests.program import call

HELLO = [{"role": "user", "content": "Hello"}]
QUESTION = PromptOptions(7, ("end",))
SAMPLING = SamplingSettings(temp=0.5, seed=3)


def rows(folder: Path, *written: object, question: PromptOptions = QUESTION) -> list[PromptRow]:
    path = folder / "prompts.jsonl"
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in written))
    return read_rows(str(path), question, SAMPLING, Screen(color="off"))


def test_messages_without_a_system_prompt_get_the_one_of_the_command_line(tmp_path: Path) -> None:
    parts: list[dict[str, Any]] = [{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}, *HELLO]
    asked = PromptOptions(system="Speak French.")
    found = rows(tmp_path, {"messages": HELLO, "id": 1}, {"messages": parts}, question=asked)
    assert found[0].messages == [{"role": "system", "content": "Speak French."}, *HELLO]
    assert found[0].repeated == {"id": 1, "messages": found[0].messages}
    assert found[1].messages == [{"role": "system", "content": "Be brief."}, *HELLO]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_of_earlier_answers_stays_with_its_message(tmp_path: Path, name: str) -> None:
    answer = {"role": "assistant", "content": "Hi.", name: "hm"}
    (found,) = rows(tmp_path, {"messages": [*HELLO, answer, *HELLO]})
    assert found.messages[1] == {"role": "assistant", "content": "Hi.", "reasoning_content": "hm"}


def test_a_request_of_a_batch_file_brings_its_id_its_limit_and_its_sampling(tmp_path: Path) -> None:
    schema = {"type": "object"}
    body = {"model": "gpt", "messages": HELLO, "temperature": 0, "top_p": 0.9, "max_completion_tokens": 5, "stop": "x"}
    form = {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
    request = {"custom_id": "a-1", "method": "POST", "url": "/v1/chat/completions", "body": body | form}
    completion = {"custom_id": "b", "url": "/v1/completions", "body": {"prompt": "def f", "seed": 9}}
    chat, raw = rows(tmp_path, request, completion)
    assert (chat.repeated, chat.messages) == ({"custom_id": "a-1", "messages": HELLO}, HELLO)
    assert (chat.options["max_tokens"], chat.options["stop"]) == (5, ["x"])
    assert chat.options["sampling"] == SamplingSettings(temp=0, top_p=0.9, seed=3, json_schema=json.dumps(schema))
    assert raw.options == {"raw": True, "max_tokens": 7, "stop": ("end",), "sampling": replace(SAMPLING, seed=9)}


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("{", "not JSON: it ends in an object at character 1"),
        ('{"prompt": "a"} x', "not JSON: trailing characters at character 17"),
        ("[1]", ":1: a JSON object is needed"),
        ({"prompt": " "}, "prompt: the text is empty"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0.type: "),
        ({"messages": HELLO, "prompt": "b"}, 'a row needs one of "prompt"'),
        ({"messages": HELLO, "raw": True}, "messages need the chat template"),
        ({"messages": ["Hello"]}, "messages.0: a JSON object is needed"),
        ({"messages": HELLO, "n": 2}, "n: Input should be 1"),
        ({"messages": HELLO, "tools": [{}]}, "has tools or logit_bias"),
        ({"messages": HELLO, "logit_bias": {"1": 1}}, "has tools or logit_bias"),
        ({"messages": HELLO, "response_format": {"type": "json_schema"}}, "response_format: "),
    ],
)
def test_a_row_that_cannot_be_asked_has_an_error_with_its_line_and_the_others_none(
    row: object, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, good = rows(tmp_path, row, {"prompt": "two"})
    assert capsys.readouterr().err == f"lacli: {bad.error}\n"
    assert bad.error.startswith(f"{tmp_path}/prompts.jsonl:1: ") and why in bad.error
    assert not good.error and good.repeated == {"prompt": "two"}


def test_a_file_whose_first_line_is_not_json_has_a_prompt_in_each_line_and_a_note_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = rows(tmp_path, "", "\ufeffWhat is a list?\r", " ", '  {"prompt": 5}', "[a")
    assert [row.repeated["prompt"] for row in found] == ["What is a list?", '  {"prompt": 5}', "[a"]
    assert (
        capsys.readouterr().err == f"lacli: {tmp_path}/prompts.jsonl is not JSON, and each of its lines is a prompt\n"
    )


def test_a_file_without_rows_is_refused_whole(tmp_path: Path) -> None:
    with pytest.raises(LacliError, match="holds no prompts"):
        rows(tmp_path)


def test_the_program_answers_the_good_rows_tells_of_the_bad_ones_and_ends_with_1(tmp_path: Path) -> None:
    path, out = tmp_path / "batch.jsonl", tmp_path / "out.jsonl"
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 9, "uniqueItems": True}
    good = {"custom_id": "a", "body": {"messages": HELLO, "max_tokens": 3, "json_schema": schema}}
    path.write_text(f'{json.dumps(good)}\n{{"custom_id": "b", "body": {{}}}}\n')
    command = ("run", "-q", "--prompts", str(path), "-o", str(out), "--mode", "plain")
    done = call(*command)
    assert done.code == 1 and "no answer to 1 of 2 prompts" in done.err
    assert f'lacli: {path}:2: a row needs one of "prompt"' in done.err
    found = {row["index"]: row for row in map(json.loads, out.read_text().splitlines())}
    assert (found[0]["custom_id"], found[0]["predicted_n"], found[0]["messages"]) == ("a", 3, HELLO)
    assert found[0]["warnings"] == ['the JSON schema: not followed: ["uniqueItems"]']
    assert found[1]["custom_id"] == "b" and "a row needs" in found[1]["error"] and "text" not in found[1]
    path.write_text(f"{json.dumps(good)}\n{json.dumps(good | {'custom_id': 'b'})}\n")
    assert call(*command).code == 0, "the corrected row is answered"
