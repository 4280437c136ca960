"""The flags of the prompt and of the end of answers, spelled as in llama.cpp, and what commands get of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import typer

from lacli.cli.environment import setting, variable_of
from lacli.cli.groups import Table, option, parameters_of
from lacli.cli.model_names import complete_template
from lacli.errors import UsageError
from lacli.settings import AnswerSettings


@dataclass(frozen=True)
class PromptOptions:
    """What is asked and how the answer is to end, as the command line gives it.

    `typed`, `file`: -sys and -sysf. `max_tokens`: of an answer, -1 for no limit. `variables`: for the template, beside
    the messages. `text`: the prompt, which `lacli run` alone reads beforehand.
    """

    typed: str
    file: str | None
    template: str
    max_tokens: int
    stops: tuple[str, ...]
    variables: Mapping[str, object] = field(default_factory=dict)
    text: str = ""
    raw: bool = False

    def __post_init__(self) -> None:
        given = {
            "--chat-template": self.template,
            "--chat-template-kwargs": self.variables,
            "a system prompt": self.typed or self.file,
        }
        for what in (name for name, value in given.items() if self.raw and value):
            raise UsageError(f"--raw uses no chat template, and {what} needs one", "drop one of them")

    @property
    def system(self) -> str:
        """The system prompt; its file is read now."""
        from lacli.text.files import check_text, read_text

        return read_text(self.file) if self.file else check_text(self.typed, "-sys")


def _unless_in_the_way(context: typer.Context, parameter: typer.CallbackParam, text: str) -> str:
    """The text of an option; one of the environment makes room for these flags, which are processed first."""
    flags = ("raw", "system_file", "load") if parameter.name == "system" else ("raw",)
    given = any(context.params.get(flag) for flag in flags)
    return "" if given and variable_of(context, parameter) else text


Prompt = Annotated[str | None, typer.Option("-p", "--prompt", help="The prompt; '-' reads standard input.")]
PromptFile = Annotated[
    str | None,
    typer.Option("-f", "--file", metavar="FILE", help="Read the prompt from a file."),
]
NoStdin = Annotated[
    bool,
    typer.Option("--no-stdin", help="Leave standard input alone. For a 'while read' loop."),
]
Raw = Annotated[bool, typer.Option("--raw", help="Continue the prompt as it is, without a chat template.")]
System = Annotated[
    str,
    setting("-sys", "--system-prompt", callback=_unless_in_the_way, help="The system prompt."),
]
SystemFile = Annotated[
    str | None,
    typer.Option("-sysf", "--system-prompt-file", metavar="FILE",
                 help="Read the system prompt from a file."),
]  # fmt: skip
ChatTemplate = Annotated[
    str,
    setting("--chat-template", metavar="NAME|FILE", callback=_unless_in_the_way, autocompletion=complete_template,
            show_default=False,
            help="Chat template in the place of the model's own. A bundled one by name (chatml, llama3, ...), or a "
            "Jinja file."),
]  # fmt: skip
ChatTemplateKwargs = Annotated[
    str,
    setting("--chat-template-kwargs", metavar="JSON", callback=_unless_in_the_way, show_default=False,
            help="Variables for the chat template. For example '{\"enable_thinking\": false}'."),
]  # fmt: skip


def make_prompt_options(
    *,
    system: str,
    system_file: str | None,
    chat_template: str,
    chat_template_kwargs: str,
    max_tokens: int | None,
    stops: list[str] | None,
) -> PromptOptions:
    """Return what the flags of the prompt and of the answer's end say."""
    from lacli.text.files import check_text
    from lacli.text.template import read_variables

    if system and system_file:
        raise UsageError("-sys and -sysf are both given", "give one of them")
    texts = tuple(check_text(part, "--stop") for part in stops or ())
    if "" in texts:
        raise UsageError("--stop is empty", "give the text that an answer is to end before")
    ending = AnswerSettings(-1 if max_tokens is None else max_tokens, texts)
    variables = read_variables(chat_template_kwargs)
    return PromptOptions(system, system_file, chat_template, ending.max_tokens, ending.stops, variables)


prompt_group = Table(
    (
        option("system", System, ""),
        option("system_file", SystemFile),
        option("chat_template", ChatTemplate, ""),
        option("chat_template_kwargs", ChatTemplateKwargs, ""),
        *parameters_of(AnswerSettings),
    ),
    make_prompt_options,
)
