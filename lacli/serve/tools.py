"""Functions that a model may call: the format of its calls, a grammar that forces them, and their way out of a text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from secrets import token_hex
from typing import Any, NamedTuple

from lacli.errors import UsageError
from lacli.text.json_schema import HEAD, checked, json_value
from lacli.text.stream import until_stop
from lacli.text.template import ChatTemplate

FENCE = "```"

MARKS = ("<tool_call>", "<tools>", "<|python_tag|>", "[TOOL_CALLS]")
"""Tags in front of calls. Models also write another family's tag, several, a fence around or inside of one, or none."""

OPENED = re.compile(rf"(?:(?:{'|'.join(map(re.escape, MARKS))}|```\w*|\{{|\[(?!T))\s*){{0,6}}")
"""Tags, fences and brackets in front of a call's name; Qwen2.5-Coder's template shows two brackets."""

STARTS = re.compile(r"<|`+|\[(?=T|\Z)|(?<=\n)[{\[,]")
"""Where a call may start: at a tag or a fence anywhere, at a bracket only at the beginning of a line."""

CLOSED = re.compile(r'(?:\s+|[;}\]]|,\s*"id"\s*:\s*"\w*"|,(?!\s*(?:"|\Z))|</tool_call>|</tools>|```(?=\W))*')
"""What ends a call behind its arguments, and what stands between it and another one."""

CallFormat = tuple[str, str]
"""How a model writes a call: what stands before its arguments, with %s for its name, and after them."""

OBJECT = '{"name": "%s", "arguments": '
HERMES: CallFormat = (f"<tool_call>\n{OBJECT}", "}\n</tool_call>")
LLAMA3: CallFormat = (OBJECT.replace("arguments", "parameters"), "}")
MISTRAL: CallFormat = (f"[TOOL_CALLS][{OBJECT}", "}]")
MISTRAL_ARGS: CallFormat = ("[TOOL_CALLS]%s[ARGS]", "")

SIGNS = {
    r"\[TOOL_CALLS\][\s\S]*\[ARGS\]": MISTRAL_ARGS,
    r"\[TOOL_CALLS\]": MISTRAL,
    r"<tool_call>[^<]{0,20}(?<!\{)\{\\?[\"']": HERMES,
    r'\{"name": function name, "parameters"': LLAMA3,
}
"""Patterns in a template's source that tell the format of its model's calls.

Behind <tool_call> other models write XML. A template may print the tag and the JSON by two expressions.
"""


class Call(NamedTuple):
    """A model's call of a function; `arguments`: a JSON text."""

    name: str
    arguments: str
    id: str


def format_of(template: ChatTemplate) -> CallFormat:
    """How a model with this template writes calls. Raises UsageError if it knows none, or has a format of its own."""
    if not re.search(r"\btools\b", template.source):
        raise UsageError("the model's chat template knows no tools", "--chat-template qwen, llama3 and mistral do")
    for sign, form in SIGNS.items():
        if re.search(sign, template.source):
            return form
    raise UsageError("the calls of tools that the model's chat template describes are in a form that lacli cannot read")


@dataclass(frozen=True)
class CallRules:
    """What an answer may call: `functions` by name with the JSON schemas of their arguments.

    `several`: more than one call in an answer. `forced`: the answer is a call. `schema`: the JSON schema of an answer
    that does not call, "" for none. `warnings`: what the grammar does not follow of the schemas.
    """

    format: CallFormat
    functions: Mapping[str, Mapping[str, Any]]
    several: bool
    forced: bool
    schema: str = ""
    warnings: list[str] = field(default_factory=list)

    def grammar(self) -> str:
        """Return the grammar of an answer: one call, or the schema. Raises UsageError for a wrong one."""
        before, after = self.format
        answers, rules = [], []
        for index, (name, schema) in enumerate(self.functions.items()):
            if schema.get("type", "object") != "object":
                raise UsageError(f"the parameters of {name} are no object", 'give {"type": "object", ...}')
            rules.append(f"arguments_{index}: {json_value({**schema, 'type': 'object'})}")
            answers.append(f"{json.dumps(before % name)} arguments_{index} {json.dumps(after)}")
        if self.schema:
            rules.append(f"answer: {json_value(json.loads(self.schema))}")
            answers.append("answer")
        start = f"start: {' | '.join(answers)}"
        grammar, self.warnings[:] = checked("\n".join([HEAD + start, *rules]), "a schema in tools or response_format")
        return grammar


class CallSplitter:
    """Takes the calls out of a stream of text, wherever it is cut; text that may begin a call is held back.

    One reader for the calls of all formats, because models mix them. A call needs the name of a known function and an
    object as arguments, which are given as they are; anything else stays text, without space around calls. `calls`:
    those found so far. `stop`: which of the `stops` has ended the content, "" for none; nothing after it is read.
    """

    def __init__(self, rules: CallRules, stops: Sequence[str] = ()) -> None:
        self._rules, self._stops = rules, stops
        self.calls: list[Call] = []
        self._held = self._waiting = self.stop = ""
        # True at the beginning of the answer, at a call and right behind it.
        self._fresh = True
        # Fences in the text so far: an odd number of them begins code.
        self._fences = 0
        typed, keys = '"type":"function",', ("arguments", "parameters")
        names = "|".join(map(re.escape, rules.functions))
        self._head = re.compile(
            rf'{OPENED.pattern}(?:(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"({names})"\s*,\s*'
            rf'"(?:{"|".join(keys)})"\s*:|({names})(?:\[CALL_ID\]\w+)?\[ARGS\])\s*\{{'
        )
        heads = [f'{kind}"name":"{name}","{key}":{{' for kind, name, key in product(("", typed), rules.functions, keys)]
        heads += [f"{name}{mark}[ARGS]{{" for name, mark in product(rules.functions, ("", "[CALL_ID]"))]
        self._beginnings = [*MARKS, FENCE, "</tool_call>", "</tools>", ',"id":"', *heads]

    def feed(self, text: str, *, final: bool = False) -> str:
        """Read on; return the text that belongs to no call.

        `final`: nothing more comes, so that no text is held back; the mark of a call that was cut there is no text.
        """
        self._held += text
        content = ""
        while not self.stop:
            length, head = self._next(final)
            text = self._held[:length] if final and not head else self._held[:length].rstrip()
            self._held = self._held[length if head else len(text) :]
            self._fences += text.count(FENCE)
            self._fresh = bool(head) or (self._fresh and not text)
            # What may begin a stop text waits, until a call or the end follows.
            self._waiting += text
            length, self.stop = until_stop(self._waiting, self._stops)
            if (head or final) and not self.stop:
                length = len(self._waiting)
            content, self._waiting = content + self._waiting[:length], self._waiting[length:]
            if self.stop or not head or not self._take(head[1] or head[2], head.string[head.end() :], final):
                break
        return content

    def _next(self, final: bool) -> tuple[int, re.Match[str] | None]:
        """Return the number of characters that are text, and the beginning of the call behind them, None for none."""
        if self._fresh:
            closed = CLOSED.match(self._held) if self.calls else None
            self._held = self._held[closed.end() :] if closed else self._held.lstrip()
        held = self._held
        for start in STARTS.finditer(("\n" if self._fresh else " ") + held):
            at = start.start() - 1
            in_code = (self._fences + held.count(FENCE, 0, at)) % 2
            if in_code and (held[at] in "{[" or held.startswith(FENCE, at)):
                continue
            if head := self._head.match(held, at):
                return at, head
            if self._may_begin(at):
                if not final:
                    return at, None
                if self._fresh and (self._rules.forced or self.calls or held[at] in "<["):
                    # The answer was cut in a call, whose mark is no text.
                    self._held = held[:at].rstrip()
                    break
        return len(self._held), None

    def _may_begin(self, at: int) -> bool:
        """Whether the held text from `at` on is the beginning of a call, or a part of its end."""
        opened = OPENED.match(self._held, at)
        assert opened
        # A name has at most 128 characters; the rest may be space, and an id of Mistral's.
        rest = re.sub(r"\s+|(?<=\[CALL_ID\])\w+", "", self._held[opened.end() :][:400])
        return rest.startswith(',"id":"') or any(beginning.startswith(rest) for beginning in self._beginnings)

    def _take(self, name: str, rest: str, final: bool) -> bool:
        """Take a call out whose arguments are `rest` behind their bracket; False if they do not end there."""
        rest = "{" + rest.lstrip("{")
        end = _end_of_object(rest)
        if end is None and not final:
            return False
        arguments = rest[:end]
        self._held = rest[len(arguments) :]
        if self._rules.several or not self.calls:
            # Mistral's templates refuse other ids than of nine letters.
            self.calls.append(Call(name, arguments, token_hex(5)[:9]))
        return True


def _end_of_object(text: str) -> int | None:
    """Return the length of the JSON object in front of a text, which may have escapes that JSON has not."""
    depth = 0
    # Texts of JSON, the last one as far as it goes, and the brackets of its objects.
    for mark in re.finditer(r'"(?:\\.|[^"\\])*"?|[{}]', text, re.DOTALL):
        depth += {"{": 1, "}": -1}.get(mark[0], 0)
        if not depth:
            return mark.end()
    return None
