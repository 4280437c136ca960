"""The rows of `lacli run --prompts`: prompts, turns, conversations, and requests of OpenAI's batch files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BeforeValidator, Field

from lacli.bench.tasks import EXAMPLE, Row, Task, each_line, opened
from lacli.cli.prompt_options import PromptOptions
from lacli.errors import LacliError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.serve.protocol import Message
from lacli.serve.sampled import Sampled
from lacli.text.checked import checked

Stops = Annotated[list[str], BeforeValidator(lambda stop: [stop] if isinstance(stop, str) else stop)]

Nothing = Annotated[list[Any], Field(max_length=0)]


class AskedRow(Sampled, Row):
    """A row, or the `body` of a request. What would change an answer and is not read here has to be empty."""

    messages: list[Message] = Field(default=[], min_length=1)
    max_tokens: int = Field(0, ge=1, validation_alias=AliasChoices("limit", "max_completion_tokens", "max_tokens"))
    stop: Stops | None = None
    n: Literal[1] = 1
    tools: Nothing = []
    functions: Nothing = []
    logit_bias: None = None

    @property
    def ways(self) -> Sequence[object]:
        return self.prompt, self.turns, self.messages


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
    """Read a row, or the `body` of a request in OpenAI's batch files."""
    if isinstance(found, LacliError):
        return PromptRow(error=f"{place}: {found}")
    row: Mapping[str, Any] = found if isinstance(found, dict) else {}
    ids = {name: row[name] for name in ("id", "custom_id") if isinstance(row.get(name), str | int | float)}
    body = row.get("body", found)
    if isinstance(body, dict) and row.get("url") == "/v1/completions":
        body = {**body, "raw": True}
    try:
        return _understood(checked(AskedRow, body), ids, question, sampling)
    except LacliError as error:
        return PromptRow(ids, error=f"{place}: {error}")


def _understood(row: AskedRow, ids: dict[str, Any], question: PromptOptions, sampling: SamplingSettings) -> PromptRow:
    """Complete a row with the flags. Raises LacliError for what cannot be asked."""
    raw = row.raw or question.raw
    system = row.system or ("" if raw else question.system)
    messages = [each.for_template for each in row.messages]
    if messages and raw:
        raise LacliError("messages need the chat template", "drop raw, or give a prompt")
    if messages and system and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system}, *messages]
    task = replace(row.task, system=system, max_tokens=row.max_tokens or question.max_tokens, raw=raw)
    told = {"messages": messages} if messages else {"prompt": row.turns or row.prompt}
    repeated = {**ids, **told, **({"system": system} if system and not messages else {})}
    stops = question.stops if row.stop is None else tuple(row.stop)
    return PromptRow(repeated, task, messages, row.sampling(sampling, lambda text: []), stops)
