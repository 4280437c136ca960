"""Function calls of a model: their forms, a grammar that forces a call, and a reader that finds calls in a text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import product
from secrets import token_hex
from typing import Any, NamedTuple

from lacli.errors import UsageError
from lacli.text.json_schema import HEAD, checked_grammar, json_value, types_in
from lacli.text.stream import until_stop
from lacli.text.template import ChatTemplate

FENCE = "```"

PYTHON = "<|tool_call_start|>"

MARKS = ("<tool_call>", "<seed:tool_call>", "<|tool_call>", PYTHON, "<tools>", "<|python_tag|>", "[TOOL_CALLS]")
"""Tags before calls. Models also write another family's tag, several tags, a fence around or in a tag, or no tag."""

ENDS = ("</tool_call>", "</seed:tool_call>", "<tool_call|>", "<|tool_call_end|>", "</tools>", "</function>")

OPENED = re.compile(rf"(?:(?:{'|'.join(map(re.escape, MARKS))}|```\w*|\{{|\[(?!T))\s*){{0,6}}")
"""Tags, fences and brackets before a call's name; Qwen2.5-Coder's template shows two brackets."""

STARTS = re.compile(r"<|`+|\[(?=T|\Z)|(?<=\n)(?:[{\[,]|to=)")
"""Possible starts of a call: a tag or a fence anywhere, a bracket only at the beginning of a line."""

CLOSED = re.compile(
    rf'(?:\s+|[;}}\]]|,\s*"id"\s*:\s*"\w*"|,(?!\s*(?:["\w]|\Z))|{"|".join(map(re.escape, ENDS))}|```(?=\W))*'
)
"""The end of a call after its arguments, and the text between two calls."""

TYPES: dict[type, Set[str]] = {str: {"string"}, bool: {"boolean"}, int: {"integer", "number"}, float: {"number"}}
TYPES |= {dict: {"object"}, list: {"array"}, type(None): {"null"}}
"""The types in JSON schemas that a Python value can have, by its class."""

HERMES = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'

FORMS = {
    r"\[TOOL_CALLS\][\s\S]*\[ARGS\]": "[TOOL_CALLS]%s[ARGS]%s",
    r"\[TOOL_CALLS\]": '[TOOL_CALLS][{"name": "%s", "arguments": %s}]',
    r"<tool_call>[^<]{0,20}(?<!\{)\{\\?[\"']|<function=[\s\S]*<parameter=": HERMES,
    r'\{"name": function name, "parameters"': '{"name": "%s", "parameters": %s}',
    r"<\|tool_call>call:": '<|tool_call>{"name": "%s", "arguments": %s}<tool_call|>',
    r"<\|channel\|>commentary": "<|channel|>commentary to=functions.%s <|constrain|>json<|message|>%s",
    r"List of tools: (<\|tool_list_start\|>)?\[": f'{PYTHON}[{{"name": "%s", "arguments": %s}}]<|tool_call_end|>',
}
"""Forms of a forced call, by patterns in a template's source. %s: the function's name, then the arguments as JSON.

Mistral's, Hermes' and Qwen's, Llama 3's, Gemma 4's, gpt-oss's and LFM2's.
"""


class Call(NamedTuple):
    """A function call by the model. `arguments`: a JSON text. `id`: identifies the call, for example in its result."""

    name: str
    arguments: str
    id: str


class UnreadableError(UsageError):
    """A chat template asks for calls in a form that lacli cannot read."""


def form_of(template: ChatTemplate) -> str:
    """Return the text of a forced call for a model with this chat template: one of the values of FORMS.

    Raises UsageError if the template supports no tools, UnreadableError if no pattern in FORMS matches it.
    """
    hint = "use --chat-template qwen, llama3 or mistral"
    if not re.search(r"\btools\b", template.source):
        raise UsageError("the model's chat template supports no tools", hint)
    for sign, form in FORMS.items():
        if re.search(sign, template.source):
            return form
    raise UnreadableError("lacli cannot read the tool calls of the model's chat template", hint)


@dataclass(frozen=True)
class CallRules:
    """Which calls an answer may have. `functions`: the JSON schemas of their arguments, by the functions' names.

    `form`: of a call in `grammar`, from `form_of`. `several`: an answer may have more than one call. `forced`: the
    answer must be a call. `schema`: the JSON schema of an answer without a call, "" for any text. `warnings`: sentences
    about ignored parts of the schemas, filled by `grammar`.
    """

    form: str
    functions: Mapping[str, Mapping[str, Any]]
    several: bool
    forced: bool
    schema: str = ""
    warnings: list[str] = field(default_factory=list)

    def grammar(self) -> str:
        """Return a grammar for a call; with a `schema`, its JSON is allowed too. Raises UsageError for a bad schema."""
        answers = [json_value(json.loads(self.schema))] if self.schema else []
        for name, schema in self.functions.items():
            if schema.get("type", "object") != "object":
                raise UsageError(f"the parameters of {name} are no object", 'give {"type": "object", ...}')
            before, between, after = self.form.split("%s")
            arguments = json_value({**schema, "type": "object"})
            answers.append(" ".join([_literal(before + name + between), arguments, _literal(after)]))
        start = f"{HEAD}start: {' | '.join(answers)}"
        grammar, self.warnings[:] = checked_grammar(start, "a schema in tools or response_format")
        return grammar


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


class CallSplitter:
    """Separates calls from an answer's text, which comes in chunks of any size; holds back text that may begin a call.

    One reader finds the calls of all formats, because models mix them. A call needs the name of a function in `rules`
    and an object as arguments; anything else stays text. Space around calls is dropped. `calls`: the calls so far; the
    arguments of the last may be incomplete. `parts`: new parts of calls, each with the call's index: first the name and
    id, then pieces of the arguments. The caller may empty `parts`. `stop`: which of `stops` ended the text, or "".
    """

    def __init__(self, rules: CallRules, stops: Sequence[str] = ()) -> None:
        self._rules, self._stops = rules, stops
        self.calls: list[Call] = []
        self.parts: list[tuple[int, Call]] = []
        self._held = self._waiting = self.stop = ""
        self._arguments: ArgumentReader | None = None
        self._is_kept = True
        # True at the beginning of the answer, at a call and right after it.
        self._fresh = True
        # Fences in the text so far: an odd number of them begins code.
        self._fences = 0
        typed, keys = '"type":"function",', ("arguments", "parameters")
        names = "|".join(map(re.escape, rules.functions))
        self._head = re.compile(
            rf"(?:{re.escape(PYTHON)}\s*\[|,)\s*({names})\(|"
            rf"(?:<\|(?:start|channel)\|>\w*\s*)*to=functions\.({names})(?![\w.-])[^{{]*?<\|message\|>|"
            rf'{OPENED.pattern}(?:<function=({names})>|call:({names})\s*\{{|(?:(?:"type"\s*:\s*"function"\s*,\s*)?'
            rf'"name"\s*:\s*"({names})"\s*,\s*"(?:{"|".join(keys)})"\s*:|({names})(?:\[CALL_ID\]\w+)?\[ARGS\])\s*\{{)'
        )
        heads = [f'{kind}"name":"{name}","{key}":{{' for kind, name, key in product(("", typed), rules.functions, keys)]
        ways = ("%s[ARGS]{", "%s[CALL_ID][ARGS]{", "<function=%s>", "call:%s{", "%s(", ",%s(")
        heads += [way % name for name, way in product(rules.functions, ways)]
        self._beginnings = [*MARKS, FENCE, *ENDS, ',"id":"', *heads]

    def feed(self, text: str, *, final: bool = False) -> str:
        """Read a chunk of the answer. Returns the text outside of calls that is certain now.

        `final`: no chunk follows, so no text is held back; the opening mark of a call that is cut off is dropped.
        """
        self._held += text
        content = ""
        while not self.stop and self._read_arguments():
            length, head = self._next(final)
            text = self._held[:length] if final and not head else self._held[:length].rstrip()
            self._held = self._held[length if head else len(text) :]
            self._fences += text.count(FENCE)
            self._fresh = bool(head) or (self._fresh and not text)
            # Text that may begin a stop text is held back until a call or the end follows.
            self._waiting += text
            length, self.stop = until_stop(self._waiting, self._stops)
            if (head or final) and not self.stop:
                length = len(self._waiting)
            content, self._waiting = content + self._waiting[:length], self._waiting[length:]
            if self.stop or not head:
                break
            self._begin(head[head.lastindex or 0], head)
        return content

    def _next(self, final: bool) -> tuple[int, re.Match[str] | None]:
        """Return how many held characters are text, and the next call's match or None. `final`: no chunk follows."""
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
                    # The answer was cut off in a call; the call's mark is no text.
                    self._held = held[:at].rstrip()
                    break
        return len(self._held), None

    def _may_begin(self, at: int) -> bool:
        """Return whether the held text from index `at` on can become a call or the end of a call."""
        opened = OPENED.match(self._held, at)
        assert opened
        # A name has at most 128 characters; the rest may be space, and an id of Mistral's.
        rest = re.sub(r"\s+|(?<=\[CALL_ID\])\w+", "", self._held[opened.end() :][:400])
        return rest.startswith(',"id":"') or any(beginning.startswith(rest) for beginning in self._beginnings)

    def _begin(self, name: str, head: re.Match[str]) -> None:
        """Begin to read a call's arguments. `name`: the function. `head`: the match of the call up to the arguments."""
        opener = {"(": "(", ">": "<" if head[0].endswith(f"={name}>") else "{"}.get(head[0][-1], "{")
        self._arguments = ArgumentReader(opener, self._rules.functions[name])
        self._held = head.string[head.end() :]
        self._is_kept = self._rules.several or not self.calls
        if self._is_kept:
            # Mistral's templates refuse ids that do not have nine letters and digits.
            self.calls.append(Call(name, "", token_hex(5)[:9]))
            self.parts.append((len(self.calls) - 1, self.calls[-1]))

    def _read_arguments(self) -> bool:
        """Read a begun call's arguments. Returns False until they end, then True; also True if no call has begun."""
        if not self._arguments:
            return True
        found = self._arguments.feed(self._held)
        if self._is_kept and found:
            last = self.calls[-1]
            self.calls[-1] = last._replace(arguments=last.arguments + found)
            self.parts.append((len(self.calls) - 1, Call("", found, "")))
        if self._arguments.rest is None:
            self._held = ""
            return False
        self._held, self._arguments = self._arguments.rest, None
        return True


TEXTS = re.compile(r"""[^"'\\]+|["']|\\(?:u[0-9a-fA-F]{4}|u(?=[0-9a-fA-F]{0,3}[^0-9a-fA-F])|[^u])""", re.DOTALL)
"""Matches a part of a text in quotes."""

VALUES = re.compile(
    r"""(?P<open>[{\[(])|(?P<close>[}\])]|</function>)|(?P<quote>["']|<\|"\|>)|(?P<space>\s+)"""
    r"""|<parameter=(?P<tag>[^>\n]+)>(?:(?P<line>\n(?=[^<]|<[^/]))|\n(?=</)|(?=[^\n]))"""
    r"""|(?P<key>[\w$.-]+)\s*[:=]|(?P<word>[\w$.+-]+)(?=\s*[^\w$.+:=\s-])|(?P<other>[^\w$.+<\s-]|<(?!\Z|/(?:f|\Z)|\|(?:"|\Z)|p))"""
)
"""Matches a part of arguments outside of texts in quotes."""

WORDS = {"True": "true", "False": "false", "None": "null"}


class ArgumentReader:
    """Reads a call's arguments in chunks, after their opening bracket, and converts them to the text of a JSON object.

    JSON stays as it is. Gemma's and Python's forms and Qwen3-Coder's tags are converted. `rest`: the text after the
    arguments, None until they end.
    """

    def __init__(self, opener: str, schema: Mapping[str, Any]) -> None:
        """`opener`: the bracket, or "<" for tags. `schema`: of the arguments; it tells which tags hold texts."""
        self._stack, self._schema, self._begun = opener, schema, "{"
        self._held = self._closer = ""
        self._types: Set[str] | None = None  # of a tag's value that may be no text
        self._is_empty = True
        self.rest: str | None = None

    def feed(self, text: str) -> str:
        """Read a chunk. Returns the part of the JSON text that it completes."""
        self._held += text
        found, self._begun = self._begun, ""
        while self.rest is None and (part := self._in_text() if self._closer else self._outside()) is not None:
            found += part
        return found

    def _in_text(self) -> str | None:
        if self._closer in ('"', "'"):
            if not (part := TEXTS.match(self._held)):
                return None
            self._held = self._held[part.end() :]
            if part[0] == self._closer:
                self._closer = ""
                return '"'
            is_json = re.fullmatch(r"""\\(?:["\\/bfnrt]|u.{4})""", part[0])
            return part[0] if is_json else "'" if part[0] == r"\'" else _literal(part[0])[1:-1]
        length, stop = until_stop(self._held, [self._closer])
        if not stop and (self._types is not None or not length):
            return None
        text, self._held = self._held[:length], self._held[length + len(stop) :]
        if stop:
            self._closer = ""
        if self._types is None:
            return _literal(text)[1:] if stop else _literal(text)[1:-1]
        types, self._types = self._types, None
        return _as_value(text, types)

    def _outside(self) -> str | None:
        if not (part := VALUES.match(self._held)):
            return None
        kind, said, before = part.lastgroup, part[0], self._held
        self._held = before[part.end() :]
        if kind == "space":
            return "" if self._stack == "<" else said
        if said == "{" and self._is_empty:
            # Models double the first bracket, or write JSON between tags.
            self._stack = "{"
            return ""
        comma, self._is_empty = "" if self._is_empty else ", ", False
        if kind == "open":
            self._stack += said
            return said.replace("(", "[")
        if kind == "close" or (self._stack == "<" and kind not in ("tag", "line")):
            opener = {"}": "{", "]": "[", ")": "("}.get(said, "")
            if opener not in self._stack:
                return ""
            self._stack = self._stack[: self._stack.rfind(opener)] if opener else ""
            if not self._stack:
                self.rest = self._held if kind == "close" else before
            return said.replace(")", "]") if self._stack else "}"
        if kind in ("tag", "line"):
            self._closer = "\n</parameter>" if kind == "line" else "</parameter>"
            types = types_in(self._schema.get("properties", {}).get(part["tag"], {}), self._schema)
            self._types = None if types == {"string"} else types
            return f"{comma}{_literal(part['tag'])}: " + ('"' if self._types is None else "")
        if kind == "quote":
            self._closer = said
            return '"'
        return f"{_literal(part['key'])}: " if kind == "key" else WORDS.get(said, said)


def _as_value(text: str, types: Set[str]) -> str:
    """Return a tag's text as JSON: a string, unless it is a JSON value of one of `types` (empty: of any type)."""
    word = WORDS.get(text.strip(), text.strip())
    try:
        value = json.loads(word)
    except (ValueError, RecursionError):
        return _literal(text)
    return word if not types or types & TYPES[type(value)] else _literal(text)
