"""From a conversation to a prompt: the choice of a chat template, Jinja's sandbox, and messages in the template's form.

The sandbox has the settings and names that transformers gives to templates.
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
"""Each message's role and content, and its function calls. The content of an answer may include its reasoning."""

OWN = "the model's own"

STOPS: dict[str, tuple[str, ...]] = {
    "chatml": ("<|im_end|>", "<|im_start|>"),
    "command-r": ("<|END_OF_TURN_TOKEN|>",),
    "gemma": ("<end_of_turn>", "<start_of_turn>"),
    "llama3": ("<|eot_id|>", "<|start_header_id|>"),
    "mistral": ("</s>", "[INST]"),
    "qwen": ("<|im_end|>", "<|im_start|>"),
}
"""The bundled templates, with the texts that end a turn in their formats."""

VARIABLES = "--chat-template-kwargs"

ANOTHER = "give another with --chat-template, or none with lacli run --raw"

MARK = token_hex(8)
"""Marks control tokens' names in messages until the prompt is tokenized. Random, so that no message contains it."""

CALL_MARKERS = (
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "<|python_tag|>"),
    *("<|tool_call>", "<tool_call|>", '<|"|>', "<|tool_call_start|>", "<|tool_call_end|>"),
    *("<|channel|>", "<|constrain|>", "<|message|>"),
)
"""Texts around function calls. Some models have them as control tokens, which must be printed to be found."""


@dataclass(frozen=True)
class ChatTemplate:
    """A compiled chat template.

    `name`: the name or file it was chosen by. `source`: its Jinja text. `formatter`: makes a prompt of messages and
    variables. `stops`: texts that end a turn, if a bundled template's format differs from the model's end tokens.
    `variables`: the user's. `stands_in`: conversations use the template, but a prompt alone is continued as it is.
    """

    name: str
    source: str
    formatter: Callable[..., str] = field(repr=False, compare=False)
    stops: tuple[str, ...] = ()
    variables: Mapping[str, object] = field(default_factory=dict, hash=False)
    stands_in: bool = False

    def render(self, messages: Messages, tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """Return the prompt text of a conversation, up to the beginning of the next answer.

        Answers may include reasoning (`as_history`). `tools`: functions that the model may call, in OpenAI's form. A
        system text that the template refuses is put into the first question. Raises PromptError if the template fails.
        """
        variables = {**self.variables, "tools": tools} if tools else self.variables
        written = [
            {**each, **as_history(each, self.source)} if each["role"] == "assistant" else each for each in messages
        ]
        for shape in (written, _merged(written), _merged(_folded(written))):
            try:
                return self.formatter(shape, **variables)
            except Exception as error:  # a template may raise anything to refuse the messages' shape
                cause = error
        raise PromptError(f"the chat template fails: {in_one_line(cause)}", ANOTHER) from cause


def compile_template(source: str, bos: str, eos: str) -> Callable[..., str]:
    """Return a Jinja chat template as a function of `messages` and the template's variables. `bos`, `eos`: token texts.

    Raises PromptError if the template is broken. The function raises whatever the template raises.
    """
    extensions = [_GenerationTags, loopcontrols]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    # Jinja's own filter escapes HTML.
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    try:
        template = environment.from_string(source)
    except Exception as error:  # Jinja raises many kinds for a broken template
        raise PromptError(f"the chat template is broken: {in_one_line(error)}", ANOTHER) from error

    def render(messages: Sequence[Mapping[str, object]], **variables: object) -> str:
        given = {"messages": messages, "bos_token": bos, "eos_token": eos, "add_generation_prompt": True}
        return template.render({**DEFAULTS, **variables, **given})

    return render


class _GenerationTags(Extension):
    """The tag `generation`, with which transformers marks answers in templates. Its content is rendered as it is."""

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
"""Names that templates expect. A user's variables replace them, but not the conversation's own names."""


def choose_template(wanted: str | None, model: Any) -> tuple[ChatTemplate, list[str]]:
    """Return the chat template to use, and a sentence if a bundled template replaces the model's missing one.

    `model`: a LlamaModel. `wanted`: a bundled template's name, a file or a Jinja text. "" means the model's own, or a
    bundled one if it has none. None means a bundled one for conversations only, even if the model has its own. Raises
    UsageError for an unknown name, LacliError for an unreadable file and PromptError for a broken template.
    """
    if wanted:
        return _wanted_template(check_text(wanted, "--chat-template"), model), []
    if wanted == "" and (source := model.chat_template):
        return ChatTemplate(OWN, source, model.compile_template(source)), []
    # Take the format whose stop texts are tokens of the model.
    name = next((name for name, stops in STOPS.items() if all(map(model.has_token, stops))), "chatml")
    other = replace(bundled_template(name, model), stands_in=True)
    if wanted is None:
        return other, []
    said = f"prompts are continued as they are, and conversations use the format {name}"
    return other, [f"the model has no chat template: {said}; --chat-template sets another"]


def read_variables(text: str) -> dict[str, object]:
    """Return a template's variables from a JSON object, or none from "". Raises UsageError for any other text."""
    example = """give an object, '{"enable_thinking": false}' for example"""
    try:
        found = json.loads(check_text(text, VARIABLES)) if text else {}
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{VARIABLES} is not JSON: {in_one_line(error)}", example) from error
    if not isinstance(found, dict):
        raise UsageError(f"{VARIABLES} is not a JSON object", example)
    return found


def bundled_template(name: str, model: Any) -> ChatTemplate:
    """Return a bundled template, compiled for a LlamaModel. `name`: a key of STOPS."""
    source = (files("lacli") / "data" / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
    return ChatTemplate(name, source, model.compile_template(source), STOPS[name])


def as_messages(question: str, system: str = "", history: Sequence[tuple[str, str]] = ()) -> list[dict[str, str]]:
    """Return the messages of a conversation that ends with `question`. `history`: earlier questions and answers."""
    messages = [{"role": "system", "content": system}] if system else []
    for asked, answer in history:
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
    return [*messages, {"role": "user", "content": question}]


def with_one_bos(prompt: str, bos: str, *, adds_bos: bool) -> str:
    """Return a rendered prompt without BOS texts that would give two BOS tokens. `adds_bos`: the tokenizer adds one."""
    begun = re.match(rf"(\s*{re.escape(bos)})+", prompt) if bos else None
    if not begun:
        return prompt
    rest = prompt[begun.end() :]
    return rest if adds_bos else bos + rest


class ControlNames:
    """Marks names of control tokens in messages, so that they become plain text: only the template may write them."""

    def __init__(self, names: Collection[str]) -> None:
        # The mark follows a name's first character, so one-character names cannot be marked.
        # A vocabulary can have thousands of names but few first pairs of characters, so names are found by the pair.
        self._by_start: dict[str, list[str]] = {}
        for name in names:
            if name[1:]:
                self._by_start.setdefault(name[:2], []).append(name)

    def marked(self, text: str, but: Collection[str] = ()) -> str:
        """Return `text` with MARK in the name of every control token, except the names in `but`."""
        names = self._pattern(text, but)
        # Names may overlap, so each beginning of a name is marked.
        return re.sub(f"(?={names}).", rf"\g<0>{MARK}", text, flags=re.DOTALL) if names else text

    def spans(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield a rendered text's parts in order. True: the part contains MARK, and all names in it are plain text."""
        names = self._pattern(text) if MARK in text else ""
        parts = re.split(f"({names})", text) if names else [text]
        for is_marked, group in groupby(filter(None, parts), key=lambda part: MARK in part):
            yield "".join(group), is_marked

    def _pattern(self, text: str, but: Collection[str] = ()) -> str:
        """Return a pattern for the names that occur in `text`, except the names in `but`, or "" if none occur."""
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
    # Jinja drops a text's last newline, and `read_text` has dropped one already.
    source = read_text(wanted) + "\n"
    return ChatTemplate(path.name, source, model.compile_template(source))


def _folded(messages: Messages) -> Messages:
    """Return the messages with the system text in the first question, for templates without a system role."""
    if len(messages) < 2 or messages[0]["role"] != "system":
        return messages
    system, first, *others = messages
    return [{**first, "content": f"{system['content']}\n\n{first['content']}"}, *others]


def _merged(messages: Messages) -> Messages:
    """Return the messages, successive messages of one role merged, for templates whose roles must alternate."""
    merged: list[Mapping[str, Any]] = []
    for message in messages:
        # Function calls and their results stay separate: they hold more than a content.
        apart = not merged or merged[-1]["role"] != message["role"]
        if not (apart or any("tool_calls" in each or each["role"] == "tool" for each in (merged[-1], message))):
            message = {**message, "content": f"{merged.pop()['content']}\n\n{message['content']}"}
        merged.append(message)
    return merged
