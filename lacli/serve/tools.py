"""Functions that a model may call: the format of its calls, a grammar that forces them, and their way out of a text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from secrets import token_hex
from typing import Any, NamedTuple

from lacli.errors import UsageError
from lacli.llamacpp.library import schema_grammar
from lacli.text.json_schema import grammar_of
from lacli.text.reasoning import ReasoningSplitter, begun_reasoning
from lacli.text.stream import begun_length
from lacli.text.template import ChatTemplate

ID_LENGTH = 9
"""Characters of a call's id: Mistral's templates refuse others."""

Converter = Callable[[str, Callable[[str], str]], tuple[str, list[str]]]

SPACE = " \t\r\n;"
"""What may stand between calls; Llama 3 writes semicolons."""

BEGUN_HEADER = re.compile(r"\s*[\w.\[\]-]*\s*")
"""What may stand in front of a call's JSON, also where it is not complete."""

BEGUN_CALL = re.compile(r'\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
"""The JSON of a call up to its arguments, with the function's name."""


@dataclass(frozen=True)
class CallFormat:
    """How a model writes calls: `begin`, a call's `before` with %s for its name, its arguments, `after`; then `closer`.

    `between`: from one call to the next, None where there is one only. `bare`: an answer that is a JSON object may be
    a call without `begin`. `named`: the name stands in front of the JSON, which is the arguments alone. `listed`: the
    JSON is a list of calls.
    """

    begin: str
    before: str
    after: str
    closer: str = ""
    between: str | None = None
    bare: bool = False
    named: bool = False
    listed: bool = False

    @property
    def header(self) -> str:
        """A pattern of what stands between `begin` and the JSON, with the name where it stands there."""
        return r"\s*([\w.-]+)(?:\[CALL_ID\]\w+)?\[ARGS\]\s*" if self.named else r"\s*()"


OBJECT = '{"name": "%s", "arguments": '
HERMES = CallFormat("<tool_call>", f"\n{OBJECT}", "}\n", closer="</tool_call>", between="</tool_call>\n<tool_call>")
LLAMA3 = CallFormat("<|python_tag|>", OBJECT.replace("arguments", "parameters"), "}", bare=True)
MISTRAL = CallFormat("[TOOL_CALLS]", OBJECT, "}", between=", ", listed=True)
MISTRAL_ARGS = CallFormat("[TOOL_CALLS]", "%s[ARGS]", "", between="[TOOL_CALLS]", named=True)

SIGNS = {
    r"\[TOOL_CALLS\][\s\S]*\[ARGS\]": MISTRAL_ARGS,
    r"\[TOOL_CALLS\]": MISTRAL,
    r"<tool_call>[^<]{0,20}(?<!\{)\{\\?[\"']": HERMES,
    r'\{"name": function name, "parameters"': LLAMA3,
}
"""Patterns in a template's source that tell the format of its model's calls.

Behind <tool_call> other models write XML. A template may print the tag and the JSON by two expressions.
"""


@dataclass(frozen=True)
class Call:
    """A model's call of a function; `arguments`: a JSON text."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: token_hex(ID_LENGTH)[:ID_LENGTH])


class CallPart(NamedTuple):
    """What came to the call at `place` among those of an answer: `call.arguments` has only that.

    `begins`: True for a call's first part.
    """

    place: int
    call: Call
    begins: bool


def format_of(template: ChatTemplate | None) -> CallFormat:
    """How a model with this template writes calls. Raises UsageError where it knows none, or has a form of its own."""
    source = template.source if template else ""
    if not template or not template.knows_tools:
        raise UsageError("the model's chat template knows no tools", "--chat-template qwen, llama3 and mistral do")
    for sign, form in SIGNS.items():
        if re.search(sign, source):
            return form
    raise UsageError("the calls of tools that the model's chat template describes are in a form that lacli cannot read")


@dataclass(frozen=True)
class CallRules:
    """What an answer may call: `functions` by name with the JSON schemas of their arguments.

    `several`: more than one call in an answer. `forced`: the answer is a call of one of `functions`. `schema`: the JSON
    schema that an answer keeps to where it does not call, "" for none.
    """

    format: CallFormat
    functions: Mapping[str, Mapping[str, Any]]
    several: bool
    forced: bool
    schema: str = ""

    @property
    def have_grammar(self) -> bool:
        """True if an answer can only be a call or keep to the schema."""
        return self.forced or bool(self.schema)

    def grammar(self, prompt: str, convert: Converter = grammar_of) -> tuple[str, list[str]]:
        """The GBNF of an answer to `prompt`, and sentences on what of the schemas it does not enforce.

        `convert`: as `grammar_of`. Raises UsageError for wrong schemas.
        """
        form = self.format
        schemas = [*self._schemas()]
        if self.schema:
            schemas.append(_moved(json.loads(self.schema), f"#/anyOf/{len(schemas)}"))
        try:
            text, ignored = convert(json.dumps({"anyOf": schemas}), schema_grammar)
        except UsageError as error:
            raise UsageError(self._in_words(error.what), error.hint) from error
        # The alternatives of the root are the rules of the functions' arguments, in the functions' order.
        above, alternatives, below = re.split(r"^root ::= (.*)$", text, flags=re.MULTILINE)
        arguments = alternatives.split(" | ")
        answer = f" | {arguments.pop()}" if self.schema else ""
        calls = " | ".join(
            f"{_quoted(form.before % name)} {rule} {_quoted(form.after)}"
            for name, rule in zip(self.functions, arguments, strict=True)
        )
        more = f"({_quoted(form.between)} called)*" if form.between and self.several else ""
        # Where the prompt has begun to reason, that has to end in front of a call.
        closer = ReasoningSplitter(begun_reasoning(prompt)).closer
        closed = _quoted(f"{closer}\n\n" if closer else "")
        begin = _quoted(("" if form.bare else form.begin) + "[" * form.listed)
        end = _quoted(form.closer + "]" * form.listed)
        root = f"root ::= {closed} ({begin} called {more} {end}{answer})"
        return f"{root}\ncalled ::= {calls}\n{above}{below}", [*map(self._in_words, ignored)]

    def _in_words(self, sentence: str) -> str:
        """A sentence in which the places of all schemas begin with a schema's owner, and references are its own."""
        owners = [*self.functions, "response_format"]

        def named(found: re.Match[str]) -> str:
            place = int(found[2])
            return "#" if found[1] else owners[place] if place < len(owners) else found[0]

        # Inside a place the word stands behind a property's name.
        return re.sub(r"(?:(#)|(?<![\w/]))/anyOf/(\d+)", named, sentence)

    def _schemas(self) -> Iterator[Any]:
        for place, (name, schema) in enumerate(self.functions.items()):
            if schema.get("type", "object") != "object":
                raise UsageError(f"the parameters of {name} are no object", 'give {"type": "object", ...}')
            yield {"type": "object", **_moved(schema, f"#/anyOf/{place}")}


def _moved(schema: Any, root: str) -> Any:
    """A schema inside another one, where its references lead to `root`."""
    if isinstance(schema, list):
        return [_moved(each, root) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    moved = {name: _moved(value, root) for name, value in schema.items()}
    refers = isinstance(schema.get("$ref"), str) and schema["$ref"].startswith("#")
    return {**moved, "$ref": root + schema["$ref"][1:]} if refers else moved


def _quoted(text: str) -> str:
    """A text as GBNF has it, whose escapes are JSON's."""
    return json.dumps(text) if text else ""


class CallSplitter:
    """Takes the calls out of a stream of text, wherever it is cut; text that may begin one is held back.

    What only looks like a call stays text; so does the call of an unknown function, which nobody could run. Where the
    arguments of a known one have begun it is a call, and its arguments are given as they come and as they are.
    `calls`: those found so far. `is_cut`: True where the last one has a part of its arguments only.
    """

    def __init__(self, rules: CallRules) -> None:
        self._rules, self._format = rules, rules.format
        self.calls: list[Call] = []
        self.is_cut = False
        self._held = ""
        self._final = False
        # A call whose end has not come; the place of the last one told of, and the characters of its arguments.
        self._open: Call | None = None
        self._told = -1, 0
        # True while nothing but calls stands in the answer: there an object without `begin` may be one.
        self._fresh = True
        # How far the JSON of a call has been read, where in it that is, the ends of its first inner object and its own.
        self._seen = self._depth = self._inner = self._end = 0
        self._quoted = self._escaped = False

    def feed(self, text: str) -> str:
        """Read on; return the text that belongs to no call."""
        self._held += text
        return "".join(iter(self._next, None))

    def news(self) -> list[CallPart]:
        """Return what came to the calls since this was asked last."""
        found = [*self.calls, self._open] if self._open else self.calls
        parts = []
        last, told = self._told
        for place in range(max(last, 0), len(found)):
            call, begins = found[place], place > last
            told = 0 if begins else told
            if begins or len(call.arguments) > told:
                parts.append(CallPart(place, replace(call, arguments=call.arguments[told:]), begins))
            self._told = place, len(call.arguments)
        return parts

    def finish(self) -> str:
        """Return what was held back, once nothing more comes; a call of a grammar that was cut is one, and no text."""
        self._final, only_calls = True, self._fresh
        rest = self.feed("")
        if only_calls and self.calls and self._format.begin.startswith(rest.strip(SPACE)):
            # Of one more call only the beginning came.
            return ""
        if not self._rules.have_grammar:
            return rest
        cut = [*self._cut(rest)]
        if rest.strip() and not (cut or self.calls) and self._rules.forced and len(self._rules.functions) == 1:
            # Only this function can have been meant.
            cut = [Call(next(iter(self._rules.functions)), "")]
        if cut:
            self.calls += cut
            self.is_cut = True
        begins_call = self._rules.forced or rest.lstrip(SPACE).startswith(self._format.begin)
        return "" if cut or begins_call else rest

    def _cut(self, text: str) -> Iterator[Call]:
        """Yield the calls in a text that the grammar of forced ones has begun; the last one as far as it goes."""
        form = self._format
        rest = text.lstrip(SPACE).removeprefix(form.begin).removeprefix("[" * form.listed)
        while begun := [name for name in self._rules.functions if rest.startswith(form.before % name)]:
            rest = rest.removeprefix(form.before % begun[0])
            try:
                end = json.JSONDecoder().raw_decode(rest)[1]
            except (ValueError, RecursionError):
                end = len(rest)
            yield Call(begun[0], rest[:end])
            rest = rest[end:].removeprefix(form.after).removeprefix(form.between or "")

    def _next(self) -> str | None:
        """The next part of the text, empty for calls; None where more has to come first."""
        held = self._held
        at = held.find(self._format.begin)
        blank = len(held) - len(held.lstrip(SPACE))
        if self._format.bare and self._fresh and held.startswith("{", blank):
            at = blank
        if at >= 0:
            text = held[:at].rstrip()
            return self._take(len(text), text) if text.strip(SPACE) else self._call(at)
        if self._fresh and blank == len(held):
            return self._take(blank, "" if self.calls else held) if held and self._final else None
        certain = held if self._final else held[: len(held) - begun_length(held, [self._format.begin])].rstrip()
        return self._take(len(certain), certain) if certain else None

    def _call(self, first: int) -> str | None:
        """Read calls that begin behind `first` characters of space: as `_next`."""
        held, form = self._held, self._format
        begin = first + len(form.begin) * held.startswith(form.begin, first)
        at = held.find("[" if form.listed else "{", begin)
        header = re.fullmatch(form.header, held[begin:at]) if at >= 0 else None
        if not header and (at >= 0 or self._final or not BEGUN_HEADER.fullmatch(held, begin)):
            return self._take(begin, held[:begin])
        end = self._json_end(at) if header else 0
        self._open = begun = self._begun(header[1], at) if header else None
        # A small model may leave out the bracket behind the arguments.
        inner = self._inner if begun and not form.named else 0
        if inner and not end and form.closer and held[inner:].lstrip().startswith(form.closer):
            end = inner
        if not self._final and not end:
            return None
        if begun and not end:
            self.is_cut, end = not inner, inner or len(held)
        if not header or not end:
            return self._take(len(held), held)
        length, rest = end, held[end:].lstrip()
        if form.closer and rest.startswith(form.closer):
            length = len(held) - len(rest) + len(form.closer)
        elif form.closer and form.closer.startswith(rest):
            if not self._final:
                return None
            # The answer was cut in the closer.
            length = len(held)
        calls = [begun] if begun else self._read(header[1], held[at:end])
        self.calls += calls if self._rules.several else calls[: 1 - len(self.calls)]
        return self._take(length, "" if calls else held[:length])

    def _begun(self, name: str, at: int) -> Call | None:
        """The call of a known function in the JSON at `at`, whose arguments have come in part or whole; None in a list.

        `name`: of the function, where it is not inside. The JSON has been read as far as it goes.
        """
        head = None if name else BEGUN_CALL.match(self._held, at)
        name, begin, end = (head[1], head.end(), self._inner) if head else (name, at, self._end)
        if name not in self._rules.functions or (self.calls and not self._rules.several):
            return None
        arguments = self._held[begin : end or len(self._held)]
        return replace(self._open, arguments=arguments) if self._open else Call(name, arguments)

    def _json_end(self, at: int) -> int:
        """Where the JSON that begins at `at` ends, 0 where more has to come. Reads every character once."""
        for place in range(max(at, self._seen), 0 if self._end else len(self._held)):
            character = self._held[place]
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._quoted, self._escaped = character != '"', character == "\\"
            else:
                self._quoted = character == '"'
                self._depth += (character in "{[") - (character in "}]")
                if self._depth == 1 and character == "}" and not self._inner:
                    self._inner = place + 1
            if not self._depth:
                self._end = place + 1
                break
        self._seen = len(self._held)
        return self._end

    def _read(self, name: str, text: str) -> list[Call]:
        """The calls in a JSON text; none where one of them is none. `name`: of the function, where it is not inside."""
        try:
            found = json.loads(text)
            entries = [{"name": name, "arguments": found}] if name else found if isinstance(found, list) else [found]
            calls = []
            for entry in entries:
                arguments = entry.get("arguments", entry.get("parameters", {}))
                if entry["name"] not in self._rules.functions or not isinstance(arguments, dict):
                    return []
                calls.append(Call(entry["name"], json.dumps(arguments, ensure_ascii=False, allow_nan=False)))
        except (ValueError, LookupError, AttributeError, TypeError, RecursionError):
            return []
        return calls

    def _take(self, length: int, text: str) -> str:
        """Remove the first `length` characters, which stand in the answer as `text`."""
        self._held = self._held[length:]
        self._fresh = self._fresh and not text.strip()
        self._seen = self._depth = self._inner = self._end = 0
        self._quoted = self._escaped = False
        self._open = None
        return text
