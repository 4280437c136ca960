"""From a conversation to a prompt: Jinja's sandbox, the choice of a chat template, and the conversation it takes.

The sandbox's settings and names are those of transformers.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from secrets import token_hex
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lacli.errors import PromptError, UsageError, in_one_line
from lacli.text.files import check_text, read_text
from lacli.text.format import did_you_mean
from lacli.text.reasoning import as_history

Messages = Sequence[Mapping[str, Any]]
"""The role and content of each message, and its calls of functions; answers stand as they were generated."""

OWN = "the model's own"

STOPS: dict[str, tuple[str, ...]] = {
    "chatml": ("<|im_end|>", "<|im_start|>"),
    "command-r": ("<|END_OF_TURN_TOKEN|>",),
    "gemma": ("<end_of_turn>", "<start_of_turn>"),
    "llama3": ("<|eot_id|>", "<|start_header_id|>"),
    "mistral": ("</s>", "[INST]"),
    "qwen": ("<|im_end|>", "<|im_start|>"),
}
"""The bundled templates with the texts that end a turn in their formats."""

VARIABLES = "--chat-template-kwargs"

ANOTHER = "give another with --chat-template; lacli run goes without one by --raw"

MARK = token_hex(8)
"""Marks names of control tokens in messages until the prompt is tokenized; random, so that no message contains it."""

CALL_MARKERS = (
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "<|python_tag|>"),
    *("<|tool_call>", "<tool_call|>", '<|"|>', "<|tool_call_start|>", "<|tool_call_end|>"),
    *("<|channel|>", "<|constrain|>", "<|message|>"),
)
"""Texts around a model's calls of functions, for some models control tokens, which have to be printed to be found."""


@dataclass(frozen=True)
class ChatTemplate:
    """A compiled chat template.

    `name`: the name or file it was chosen by. `source`: its Jinja text. `stops`: texts that end a turn, for a bundled
    one whose format the model's own end tokens may not belong to. `variables`: the user's, with the conversation.
    `stands_in`: the model has no template, so this one is for conversations only; a prompt alone is continued as it is.
    """

    name: str
    source: str
    formatter: Callable[..., str] = field(repr=False, compare=False)
    stops: tuple[str, ...] = ()
    variables: Mapping[str, object] = field(default_factory=dict, hash=False)
    stands_in: bool = False

    def render(self, messages: Messages, tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """The prompt of a conversation, up to the beginning of the next answer; answers are given as generated.

        `tools`: the functions that the model may call, as OpenAI's protocol has them. A system text that the template
        refuses goes in front of the first question. Raises PromptError when the template fails.
        """
        variables = {**self.variables, "tools": tools} if tools else self.variables
        written = [
            {**each, **as_history(each, self.source)} if each["role"] == "assistant" else each for each in messages
        ]
        for shape in (written, _merged(written), _merged(_folded(written))):
            try:
                return self.formatter(shape, **variables)
            except Exception as error:  # whatever a template's program raises, it refuses the shape
                cause = error
        raise PromptError(f"the chat template fails: {in_one_line(cause)}", ANOTHER) from cause


def compile_template(source: str, bos: str, eos: str) -> Callable[..., str]:
    """Return a Jinja chat template as a function of `messages` and variables of its own.

    Rendering raises whatever the template raises. Raises PromptError when the template is broken.
    """
    extensions = [_GenerationTags, loopcontrols]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    # Without Jinja's escapes for HTML.
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    try:
        template = environment.from_string(source)
    except Exception as error:  # whatever Jinja raises, the template is at fault
        raise PromptError(f"the chat template is broken: {in_one_line(error)}", ANOTHER) from error

    def render(messages: Sequence[Mapping[str, object]], **variables: object) -> str:
        given = {"messages": messages, "bos_token": bos, "eos_token": eos, "add_generation_prompt": True}
        return template.render({**DEFAULTS, **variables, **given})

    return render


class _GenerationTags(Extension):
    """Leave the text between transformers' marks of an answer as it is."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise(message: object) -> NoReturn:
    raise ValueError(str(message)[:200])


DEFAULTS: dict[str, object] = {
    **{name: None for name in ("tools", "tool_choice", "functions", "function_call")},
    "raise_exception": _raise,
    "strftime_now": lambda form: datetime.now().strftime(form),
}
"""Names that templates expect with the conversation; a user's variables replace them, but not the conversation's."""


def choose_template(wanted: str | None, model: Any) -> tuple[ChatTemplate, list[str]]:
    """The template to use, with the texts that end a turn, and sentences about what takes the place of the model's own.

    `model`: a LlamaModel. `wanted`: a bundled template's name, a file or a Jinja text; empty for the model's own, or
    for a bundled one if it has none; None to continue prompts as they are even if the model has a template.
    Raises UsageError for an unknown name, LacliError for an unreadable file and PromptError for a broken template.
    """
    if wanted:
        return _wanted_template(check_text(wanted, "--chat-template"), model), []
    if wanted == "" and (source := model.chat_template):
        return ChatTemplate(OWN, source, model.compile_template(source)), []
    # The one whose stop texts are tokens of the model.
    name = next((name for name, stops in STOPS.items() if all(map(model.has_token, stops))), "chatml")
    other = replace(bundled_template(name, model), stands_in=True)
    if wanted is None:
        return other, []
    said = f"prompts are continued as they are, and conversations are written in {name}"
    return other, [f"the model has no chat template: {said}; --chat-template sets another"]


def read_variables(text: str) -> dict[str, object]:
    """A template's variables from a JSON object; an empty text has none. Raises UsageError for anything else."""
    example = """give an object, '{"enable_thinking": false}' for example"""
    try:
        found = json.loads(check_text(text, VARIABLES)) if text else {}
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{VARIABLES} is not JSON: {in_one_line(error)}", example) from error
    if not isinstance(found, dict):
        raise UsageError(f"{VARIABLES} is no JSON object", example)
    return found


def bundled_template(name: str, model: Any) -> ChatTemplate:
    """A bundled template, by its name in STOPS."""
    source = (files("lacli") / "data" / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
    return ChatTemplate(name, source, model.compile_template(source), STOPS[name])


def as_messages(question: str, system: str = "", history: Sequence[tuple[str, str]] = ()) -> list[dict[str, str]]:
    """Return a conversation that ends with `question` as messages for a template; `history`: questions and answers."""
    messages = [{"role": "system", "content": system}] if system else []
    for asked, answer in history:
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
    return [*messages, {"role": "user", "content": question}]


def with_one_bos(prompt: str, bos: str, *, adds_bos: bool) -> str:
    """A rendered prompt whose tokens begin with one BOS at most. `adds_bos`: the tokenizer writes one."""
    begun = re.match(rf"(\s*{re.escape(bos)})+", prompt) if bos else None
    if not begun:
        return prompt
    rest = prompt[begun.end() :]
    return rest if adds_bos else bos + rest


class ControlNames:
    """Marks names of control tokens in messages, so that they stay plain text: only the template may write the tokens.

    Text with marks is then tokenized as plain text.
    """

    def __init__(self, names: Collection[str]) -> None:
        # A mark stands behind a name's first character, so that it cannot part a name of one character.
        # A vocabulary can have thousands of names, but their first two characters are few.
        self._by_start: dict[str, list[str]] = {}
        for name in names:
            if name[1:]:
                self._by_start.setdefault(name[:2], []).append(name)

    def marked(self, text: str, but: Collection[str] = ()) -> str:
        """A message with a mark in every name except those in `but`."""
        names = self._pattern(text, but)
        # Names can overlap, so every place where one begins is marked.
        return re.sub(f"(?={names}).", rf"\g<0>{MARK}", text, flags=re.DOTALL) if names else text

    def spans(self, text: str) -> Iterator[tuple[str, bool]]:
        """The parts of a rendered text in order, each with whether it is marked: then its names are plain text."""
        names = self._pattern(text) if MARK in text else ""
        parts = re.split(f"({names})", text) if names else [text]
        for is_marked, group in groupby(filter(None, parts), key=lambda part: MARK in part):
            yield "".join(group), is_marked

    def _pattern(self, text: str, but: Collection[str] = ()) -> str:
        """A pattern of the names that occur in `text`, longest first; empty without any."""
        begun = (names for start, names in self._by_start.items() if start in text)
        found = {name for names in begun for name in names if name in text and name not in but}
        return "|".join(map(re.escape, sorted(found, key=len, reverse=True)))


def _wanted_template(wanted: str, model: Any) -> ChatTemplate:
    if "{{" in wanted or "{%" in wanted:
        return ChatTemplate("a text", wanted, model.compile_template(wanted))
    if wanted.lower() in STOPS:
        return bundled_template(wanted.lower(), model)
    path = Path(os.path.expanduser(wanted))
    if not (path.suffix == ".jinja" or len(path.parts) > 1 or os.path.exists(path)):
        hint = did_you_mean(wanted, STOPS, f"one of {', '.join(STOPS)}")
        raise UsageError(f"--chat-template {wanted[:80]!r} is neither a template's name nor a file", hint)
    # Jinja takes the last newline of a text away, as reading the file has done.
    source = read_text(wanted) + "\n"
    return ChatTemplate(path.name, source, model.compile_template(source))


def _folded(messages: Messages) -> Messages:
    """The system text in front of the first question, for templates without a system role."""
    if len(messages) < 2 or messages[0]["role"] != "system":
        return messages
    system, first, *others = messages
    return [{**first, "content": f"{system['content']}\n\n{first['content']}"}, *others]


def _merged(messages: Messages) -> Messages:
    """Neighbours of one role as one message, for templates whose roles must alternate."""
    merged: list[Mapping[str, Any]] = []
    for message in messages:
        # Calls of functions and their results stay by themselves: they have more than a content.
        apart = not merged or merged[-1]["role"] != message["role"]
        if not (apart or any("tool_calls" in each or each["role"] == "tool" for each in (merged[-1], message))):
            message = {**message, "content": f"{merged.pop()['content']}\n\n{message['content']}"}
        merged.append(message)
    return merged
