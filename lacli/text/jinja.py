"""Chat templates as functions, by Jinja's sandbox, whose settings and names are those of transformers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import NoReturn

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lacli.errors import PromptError, in_one_line

ANOTHER = "give another with --chat-template; lacli run goes without one by --raw"


def compile_template(source: str, bos: str, eos: str) -> Callable[..., str]:
    """Return a Jinja chat template as a function of `messages` and variables of its own.

    Rendering raises whatever the template raises. Raises PromptError when the template is broken.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTags, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
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


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(value: object, ensure_ascii: bool = False, **style: object) -> str:
    """Write JSON without Jinja's escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **style)  # type: ignore[arg-type]


DEFAULTS: dict[str, object] = {
    **{name: None for name in ("tools", "tool_choice", "functions", "function_call")},
    "raise_exception": _raise,
    "strftime_now": _now,
}
"""Names that templates expect with the conversation; a user's variables replace them."""
