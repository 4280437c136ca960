"""Functions that a model may call: the format of its calls, a grammar that forces them, and their way out of a text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, NamedTuple

from lacli.errors import UsageError
from lacli.text.json_schema import HEAD, checked, json_value
from lacli.text.reasoning import ReasoningSplitter, begun_reasoning
from lacli.text.template import ChatTemplate

FENCE = "```"

MARKS = ("<tool_call>", "<tools>", "<|python_tag|>", "[TOOL_CALLS]")
"""Tags in front of calls. Models also write another family's tag, several, a fence around or inside of one, or none."""

OPENED = re.compile(rf"(?:(?:{'|'.join(map(re.escape, MARKS))}|```\w*|\{{|\[(?!T))\s*){{0,6}}")
"""Tags, fences and brackets in front of a call's name; Qwen2.5-Coder's template shows two brackets."""

STARTS = re.compile(r"(<|`+|\[(?=T|\Z))|\n([{\[])")
"""Where a call may start: at a tag or a fence anywhere, at a bracket only at the beginning of a line."""

STRUCTURE = re.compile(r'\\.|["{}\[\]]', re.DOTALL)
"""Quotes, brackets and escapes of JSON."""

KEYS = r'(?:\s*,\s*"[^"]*"\s*:\s*(?:"[^"]*"|[\w.+-]+|\{\}))*'
ENDS = r'(?:\s*(?:[;}\]]|,(?=\s*[^\s"])|</tool_call>|</tools>))*'
CLOSED = {False: re.compile(KEYS + ENDS), True: re.compile(rf"{KEYS}{ENDS}(?:\s*```)?{ENDS}")}
"""What ends a call behind its arguments: further keys, brackets, separators, tags and, in a fence, the fence's end."""


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
    that does not call, "" for none.
    """

    format: CallFormat
    functions: Mapping[str, Mapping[str, Any]]
    several: bool
    forced: bool
    schema: str = ""

    def grammar(self, prompt: str) -> str:
        """Return the grammar of an answer to `prompt`: one call, or the schema. Raises UsageError for a wrong one."""
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
        # Reasoning that the prompt has begun has to end in front of a call.
        closer = ReasoningSplitter(begun_reasoning(prompt)).closer
        closed = json.dumps(f"{closer}\n\n" if closer else "")
        start = f"start: {closed} ({' | '.join(answers)})"
        return checked("\n".join([HEAD + start, *rules]), "a schema in tools or response_format")[0]


class CallSplitter:
    """Takes the calls out of a stream of text, wherever it is cut; text that may begin a call is held back.

    One reader for the calls of all formats, because models mix them. A call needs the name of a known function and an
    object as arguments, which are given as they are; anything else stays text. `calls`: those found so far.
    """

    def __init__(self, rules: CallRules) -> None:
        self._rules = rules
        self.calls: list[Call] = []
        self._held = ""
        self._final = False
        # True at the beginning of the answer and right behind a call.
        self._fresh = True
        # Fences in the text so far: an odd number of them begins code. `_fenced`: in the fence of a call.
        self._fences, self._fenced = 0, False
        names = "|".join(map(re.escape, rules.functions))
        named = rf'(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"({names})"\s*'
        given = r'(?:,\s*"(?:arguments|parameters)"\s*:\s*(?=\{|\Z)|(?=\}))'
        self._head = re.compile(
            rf"{OPENED.pattern}(?:{named}{given}|({names})(?:\[CALL_ID\]\w+)?\[ARGS\]\s*(?=\{{|\Z))"
        )
        kinds = [
            f'{kind}"name":"{{0}}","{key}":{{{{'
            for kind in ("", '"type":"function",')
            for key in ("arguments", "parameters")
        ]
        heads = [*kinds, "{0}[CALL_ID][ARGS]{{", "{0}[ARGS]{{"]
        self._beginnings = [*MARKS, FENCE, *(head.format(name) for name in rules.functions for head in heads)]

    def feed(self, text: str, *, final: bool = False) -> str:
        """Read on; return the text that belongs to no call.

        `final`: nothing more comes, so that no text is held back; the mark of a call that was cut there is no text.
        """
        self._held, self._final = self._held + text, final
        return "".join(iter(self._next, None))

    def _next(self) -> str | None:
        """Return the next text that belongs to no call, and take the call behind it; None if more has to come first."""
        held = self._held
        if not held.strip():
            return self._release(len(held))
        skipped = len(held) - len(held.lstrip()) - 1 if self._fresh else 0
        for start in STARTS.finditer("\n" + held[skipped + 1 :] if self._fresh else held):
            at = start.start(start.lastindex or 0) + skipped
            in_code = (self._fences + held.count(FENCE, 0, at)) % 2
            if in_code and (held[at] in "{[" or held.startswith(FENCE, at)):
                continue
            head = self._head.match(held, at)
            # Without arguments, only a tag tells a call from an answer in JSON.
            if head and head.end() < len(held) and (held[at] == "<" or held[head.end()] != "}"):
                text = self._take(head)
                return self._release(at) if text is None else text
            if self._may_begin(at):
                if not self._final:
                    return self._release(at)
                marked = self.calls or (self._rules.schema and held.startswith(("<", "[T"), at))
                if self._rules.forced or (self._fresh and marked):
                    # The answer was cut in a call, whose mark is no text.
                    self._held = held[:at].rstrip()
                    break
        return self._release(len(self._held))

    def _may_begin(self, at: int) -> bool:
        """Whether the held text from `at` on is the beginning of a call."""
        opened = OPENED.match(self._held, at)
        assert opened
        # A name has at most 128 characters; the rest may be space, and an id of Mistral's.
        rest = re.sub(r"\s+|(?<=\[CALL_ID\])\w+", "", self._held[opened.end() :][:400])
        return any(beginning.startswith(rest) for beginning in self._beginnings)

    def _release(self, length: int) -> str | None:
        """Return the first `length` characters as text, without space at their end while a call may follow."""
        text = self._held[:length] if self._final else self._held[:length].rstrip()
        self._held = self._held[len(text) :]
        self._fresh = self._fresh and not text.strip()
        self._fences += text.count(FENCE)
        return text or None

    def _take(self, head: re.Match[str]) -> str | None:
        """Take a call out and return the text in front of it; None until it is certain where the call ends."""
        rest = self._held[head.end() :]
        rest = re.sub(r"^\{+", "{", f"{{}}{rest}" if rest.startswith("}") else rest)
        end = _end_of_object(rest)
        if end is None and not self._final:
            return None
        fenced, arguments = self._fenced or FENCE in head[0], rest[:end]
        closed = CLOSED[fenced].match(rest, len(arguments))
        assert closed
        behind = rest[closed.end() :]
        begun = any(mark.startswith(behind.strip()) for mark in (",", "</tool_call>", "</tools>", FENCE * fenced))
        if not self._final and (begun or behind.lstrip().startswith(",")):
            return None
        text = self._held[: head.start()].rstrip()
        self._fences += text.count(FENCE)
        self._fenced = fenced and FENCE not in closed[0]
        self._fresh, self._held = True, "" if begun else behind
        if self._rules.several or not self.calls:
            # Mistral's templates refuse other ids than of nine letters.
            self.calls.append(Call(head[1] or head[2], arguments, token_hex(5)[:9]))
        return text


def _end_of_object(text: str) -> int | None:
    """Return the length of the JSON object in front of a text; None if it does not end there."""
    depth, quoted = 0, False
    for mark in STRUCTURE.finditer(text):
        if mark[0] == '"':
            quoted = not quoted
        elif mark[0] in "{}[]" and not quoted:
            depth += 1 if mark[0] in "{[" else -1
        if not depth:
            return mark.end()
    return None
