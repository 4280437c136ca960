"""The rows of `lacli run --prompts`: prompts, turns, conversations, and requests of OpenAI's batch files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from json import dumps
from typing import Any

from lacli.api.options import SAMPLED, AnswerOptions, checked_messages, checked_options
from lacli.bench.tasks import EXAMPLE, Row, Task, each_line, opened, task_from_row
from lacli.cli.prompt_options import PromptOptions
from lacli.errors import LacliError
from lacli.llamacpp.sampling import SamplingSettings

NUMBERS = {**SAMPLED, **{name: name for name in ("presence_penalty", "frequency_penalty", "repeat_penalty")}}
"""Fields of a row that are numbers of SamplingSettings, with its names of them."""

REFUSED = ("tools", "functions", "logit_bias")
"""Fields of OpenAI's that would change an answer and are not read here."""

MESSAGES = 'write "messages": [{"role": "user", "content": "..."}]'


@dataclass(frozen=True)
class PromptRow:
    """What a row asks, and how.

    `repeated`: what the line of its answer begins with: ids, the prompt, the system prompt. `task`: its turns, unless
    it has `messages`. `error`: why it cannot be asked, "" if it can.
    """

    repeated: Mapping[str, Any] = field(default_factory=dict)
    task: Task = Task(())
    messages: Sequence[Mapping[str, str]] = ()
    sampling: SamplingSettings = SamplingSettings()
    stops: Sequence[str] = ()
    error: str = ""


def read_rows(path: str, question: PromptOptions, sampling: SamplingSettings) -> list[PromptRow]:
    """Read the rows of a file of JSON lines, or of stdin for `-`; a row that is none has an error.

    `question`, `sampling`: what holds where a row says nothing. Raises LacliError for a file that cannot be read, and
    for one without rows.
    """
    with opened(path) as file:
        rows = [_row(found, place, question, sampling) for place, found in each_line(file, path)]
    if not rows:
        raise LacliError(f"{path} holds no prompts", EXAMPLE)
    return rows


def _row(found: object, place: str, question: PromptOptions, sampling: SamplingSettings) -> PromptRow:
    row: Row = found if isinstance(found, dict) else {}
    ids = {name: row[name] for name in ("custom_id", "id") if isinstance(row.get(name), str | int)}
    try:
        if isinstance(found, LacliError):
            return PromptRow(error=f"{place}: {found}")
        if not isinstance(found, dict):
            raise LacliError("not a JSON object", EXAMPLE)
        return _understood(row, question, sampling)
    except LacliError as error:
        return PromptRow(ids, error=f"{place}: {error}")


def _understood(row: Row, question: PromptOptions, sampling: SamplingSettings) -> PromptRow:
    """Read a row, or the `body` of a request in OpenAI's batch files. Raises LacliError for what cannot be asked."""
    body = row.get("body", row)
    if not isinstance(body, Mapping):
        raise LacliError("body is not an object", EXAMPLE)
    given = {name: value for name, value in body.items() if value is not None}
    for name in REFUSED:
        if given.get(name):
            raise LacliError(f"{name} cannot be given here", "lacli serve MODEL takes tools and logit_bias")
    if given.pop("n", 1) != 1:
        raise LacliError("n is not 1", "a row has one answer; write it once for each")
    if "max_completion_tokens" in given:
        given["max_tokens"] = given.pop("max_completion_tokens")
    sampling = _sampling(given, sampling)
    stops = checked_options(AnswerOptions(stop=given.pop("stop", question.stops)))["stop"]
    stops = (stops,) if isinstance(stops, str) else stops
    ids = {"id": row["id"]} if body is not row and "id" in row else {}
    if row.get("url") == "/v1/completions":
        given["raw"] = True
    messages = _messages(given.pop("messages")) if "messages" in given else []
    if messages and ("prompt" in given or "turns" in given):
        raise LacliError("a row has messages and a prompt", "drop one of them")
    # What else a row says is checked as that of a prompt.
    task = task_from_row({**given, **ids, **({"prompt": messages[-1]["content"]} if messages else {})})
    raw = task.raw or question.raw
    system = task.system or ("" if raw else question.system)
    if messages and raw:
        raise LacliError("messages need the chat template", "drop raw, or give a prompt")
    if messages and system and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system}, *messages]
    task = replace(task, system=system, max_tokens=task.max_tokens or question.max_tokens, raw=raw)
    repeated = {
        **({} if task.id is None else {"id": task.id}),
        **({"custom_id": row["custom_id"]} if "custom_id" in row else {}),
        **({"messages": messages} if messages else {"prompt": prompt_of(task)}),
        **({"system": system} if system and not messages else {}),
    }
    return PromptRow(repeated, task, messages, sampling, stops)


def prompt_of(task: Task) -> str | list[str]:
    """A prompt as answers repeat it: a text, or a list of several turns."""
    return [*task.turns] if task.turns[1:] else task.turns[0]


def _sampling(given: dict[str, Any], sampling: SamplingSettings) -> SamplingSettings:
    """Take the fields about sampling out of a row. Raises UsageError for impossible values."""
    chosen = {NUMBERS[name]: given.pop(name) for name in NUMBERS if name in given}
    form = given.pop("response_format", {})
    schema = {"json_object": {"type": "object"}}.get(str(form.get("type"))) if isinstance(form, dict) else None
    if isinstance(form, dict) and form.get("type") == "json_schema":
        schema = (form.get("json_schema") or {}).get("schema")
        if not isinstance(schema, dict):
            raise LacliError("response_format has no schema", 'give {"json_schema": {"schema": {...}}}')
    if schema:
        chosen |= {"json_schema": dumps(schema), "grammar": ""}
    return replace(sampling, **chosen)


def _messages(given: object) -> list[dict[str, str]]:
    """The messages of a conversation, as templates take them. Raises LacliError for what is none."""
    if not isinstance(given, list):
        raise LacliError("messages is not a list", MESSAGES)
    messages = [{**each, "content": _text(each.get("content"))} if isinstance(each, dict) else each for each in given]
    checked_messages(messages)
    # OpenAI's later name of a system prompt is in no template.
    return [each | ({"role": "system"} if each["role"] == "developer" else {}) for each in messages]


def _text(content: object) -> object:
    """The text of a message whose content may be in parts."""
    if not isinstance(content, list):
        return content
    if not all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        raise LacliError("a message has a part that is no text", "lacli reads and writes text only")
    return "\n\n".join(str(part.get("text", "")) for part in content)
