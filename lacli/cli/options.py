"""Typer options made from the settings classes, in groups, and the options that several commands share."""

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
"""The environment variable that makes `main.py` show tracebacks if it is 1. It has no option."""

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
"""llama.cpp's environment variables whose names differ from the name of their option (common/arg.cpp)."""

EPILOG = "Environment variables set defaults, such as LACLI_WINDOW=10 for --window."
"""The end of a command's help."""

IN_FILE = "_in_file"
"""Suffix of the name of an option that reads a setting from a file."""


def setting(*flags: str, **more: Any) -> Any:
    """Return `typer.Option(*flags, **more)` with a default that an environment variable can set (`variables`)."""
    return typer.Option(*flags, envvar=variables(*flags), show_envvar=False, **more)


def variables(*flags: str) -> list[str]:
    """Return an option's environment variables: LACLI_ with each long flag, then the names that llama.cpp has."""
    longs = [flag.split("/")[0] for flag in flags if flag.startswith("--")]
    words = [long.removeprefix("--").replace("-", "_").upper() for long in longs]
    others = [OTHERS[long] for long in longs if long in OTHERS]
    return [*(f"LACLI_{each}" for each in words), *(f"LLAMA_ARG_{each}" for each in words), *others]


def parameters_of(
    settings: type[Any], *, only: Collection[str] = (), without: Collection[str] = (), **shown: str
) -> list[Parameter]:
    """Return a Typer option for each field of `settings` that has a help text. An option that is not given is None.

    `only`: names of fields, () for all. `without`: fields to leave out. `shown`: a field's default as told in help.
    """
    return [
        parameter(replace(each, shown=shown.get(each.name, each.shown)))
        for each in options_of(settings).values()  # type: ignore[arg-type]  # mypy doubts that classes have hashes
        if each.help and (not only or each.name in only) and each.name not in without
    ]


def given_name(context: typer.Context, given: typer.CallbackParam) -> str:
    """Return the environment variable that set the option `given`, or else its flag as typed on the command line."""
    source = context.get_parameter_source(given.name)
    if source is not None and source.name == "ENVIRONMENT":
        return next(name for name in given.envvar or () if os.environ.get(name))
    return next((flag for flag in given.opts if flag in {word.partition("=")[0] for word in sys.argv}), given.opts[0])


def _checked(declared: Option, context: typer.Context, given: typer.CallbackParam, value: Any) -> Any:
    """Return the `value` of option `declared`, converted. `given`: Typer's form of it. Raises UsageError if invalid."""
    name = given_name(context, given)
    try:
        if declared.read:
            value = [*map(declared.read, value)] if declared.repeated else declared.read(value)
    except UsageError as error:
        raise UsageError(f"{name}: {error.what}", error.hint) from error
    declared.check(tuple(value) if declared.repeated else value, name)
    return value


def parameter(each: Option) -> Parameter:
    flags, shown = each.flags, each.shown
    kind = list[str] if each.repeated else str if each.read else each.kind
    if each.default is True:
        flags = (f"{flags[0]}/--no-{flags[0].removeprefix('--')}", *flags[1:])
    elif not shown and each.default is not False and each.default not in (None, "", ()):
        shown = str(each.default)
    declare = setting if each.variable else typer.Option
    # Typer would show this default in parentheses.
    told = f"{each.help}  [default: {shown}]" if shown else each.help
    # Typer would take 0.1 ms to look at the annotations of each callback.
    check = lambda context, given, value: None if value is None else _checked(each, context, given, value)  # noqa: E731
    declared = declare(*flags, help=told, metavar=each.metavar, show_default=False, callback=check)
    return Parameter(each.name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, declared])


def group(make: Callable[..., Made], *options: Parameter) -> Callable[..., Made]:
    """Return a function with the parameters `options`, which calls `make` with all that are not None, lists as tuples.

    It raises UsageError if a text is given twice, as an option and as a file.
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
    """Return a decorator that replaces some parameters of a command by several Typer options each.

    `groups`: for each such parameter, a function whose parameters are the options; its result goes to the command.
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
    """Return the names of the parameters that the command line sets, not the environment or a default."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return frozenset(name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE")


def model_names() -> Iterator[str]:
    """Yield completions of MODEL: aliases, models in the hub's cache and GGUF files in the current folder."""
    from lacli.hub.cache import cached_names
    from lacli.hub.names import models, own_aliases, read_aliases

    with suppress(LacliError, OSError):
        yield from (alias.name for alias in read_aliases(own_aliases()).values())
    # The rule of huggingface_hub, whose import takes too long here.
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
HubRepository = Annotated[str | None, typer.Option("-hf", "--hf-repo", help="MODEL on the hub: OWNER/REPO[:QUANT].")]
DraftModel = Annotated[str | None, typer.Option("-md", "--model-draft", hidden=True)]  # Typer would read -md as `-m d`.
Words = Annotated[str | None, typer.Argument(metavar="PROMPT", help="The prompt; '-' reads standard input.")]
Prompt = Annotated[str | None, typer.Option("-p", "--prompt", help="The prompt; '-' reads standard input.")]


def model_of(
    argument: Model = None, model_file: ModelFile = None, hf_repo: HubRepository = None, draft: DraftModel = None
) -> str | None:
    """Return the model that options or environment name, None for none. Raises UsageError for two models or -md."""
    from lacli.hub.names import PREFIX

    if draft is not None:
        raise UsageError("there is no -md", "lacli needs no draft model")
    # Without the prefix a folder of the same name would be taken.
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
    """Return the given model and prompt, None if missing. Raises UsageError for two models, two prompts, or -md."""
    only = argument if words is prompt is None else None
    if only is not None and (only.split()[1:] or model_of(None, model_file, hf_repo, draft)) and not names_model(only):
        argument, words = None, only
    if words is not None and prompt is not None:
        raise UsageError("the prompt is given twice, after MODEL and with -p", "drop one of them")
    return model_of(argument, model_file, hf_repo, draft), prompt if words is None else words


def names_model(text: str) -> bool:
    """Return whether `text`, the only argument, means a model: a file, or one word that can name a model."""
    from lacli.hub.names import own_aliases, read_aliases, read_name

    with suppress(LacliError):
        found = read_name(text, read_aliases(own_aliases()))
        return len(text.split()) < 2 or text.endswith(".gguf") or os.path.exists(str(found))
    return False


def model_path(model: str | None, screen: Screen, offline: bool = False) -> Path:
    """Return the file of `model`, None for the installed SmolLM2. A missing file is downloaded, unless `offline`.

    Raises LacliError if no file is found.
    """
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
"""Flags of commands that use one device: all flags of `engine_group` but --replicas and --rpc."""

preset = parameter(
    Option(
        ("--preset",),
        "Lookahead sizes for this text or model, if rows are cheap.",
        "preset",
        kind=Literal["code", "text", "creative", "7b", "13b", "34b"],
    )
)

sizes = parameters_of(DecodeSettings, only=("window", "ngram", "guesses"))
sizes_group = group(partial(decode_settings, mode="lookahead"), preset, *sizes)
"""The flags for W, N and G, and --preset."""


def in_file(flags: tuple[str, ...], help: str, name: str) -> Parameter:
    """Return an option with these `flags`, which reads the value of the field `name` from a file."""
    return parameter(Option(flags, help, name + IN_FILE, kind=str, metavar="FILE", read=read_text, variable=False))


sampling_group = group(
    SamplingSettings,
    *parameters_of(SamplingSettings),
    in_file(("--grammar-file",), "Read the grammar from a file.", "grammar"),
    in_file(("-jf", "--json-schema-file"), "Read the schema from a file.", "json_schema"),
)


@dataclass(frozen=True)
class PromptOptions(AnswerSettings):
    """How a prompt is made of a question, and when its answer ends.

    `chat_template`: a name or a file, "" for the model's own. `raw`: use no chat template.
    """

    system: str = option("", "The system prompt.", "-sys", "--system-prompt")
    chat_template: str = option("", "Chat template: a name (chatml, ...) or a Jinja file.")
    chat_template_kwargs: str = option("", "Variables of the template, as JSON: '{\"enable_thinking\": false}'.")
    raw: bool = False


prompt_group = group(
    PromptOptions,
    *parameters_of(PromptOptions),
    in_file(("-sysf", "--system-prompt-file"), "Read the system prompt from a file.", "system"),
)

Tasks = Annotated[str | None, typer.Option("--prompts", metavar="FILE", help="Read prompts from a file of JSON lines.")]
Each = Annotated[int | None, typer.Option("--each", min=1, help="Limit each class to N prompts.")]
CacheFile = Annotated[
    str | None, setting("--prompt-cache", metavar="FILE", help="Keep the prefilled tokens for the next run.")
]
CacheReadOnly = Annotated[bool, setting("--prompt-cache-ro", help="Do not write the file of --prompt-cache.")]
Offline = Annotated[bool, setting("--offline", help="Use only models on this disk.")]
ShowAccepted = Annotated[bool, setting("--show-accepted", help="Colour accepted drafted tokens by their origin.")]
Stats = Annotated[
    Detail, setting("--stats", metavar="[short|full]", show_default=False, help="Print speed and drafts to stderr.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Quiet = Annotated[bool, setting("-q", "--quiet", help="Print no notes, only warnings and errors.")]
Verbose = Annotated[bool, setting("-v", "--verbose", help="Print llama.cpp's log.")]
ColorWhen = Annotated[Switch, setting("--color", help="Use colours. auto: on a terminal.")]


@dataclass(frozen=True)
class Loading:
    """Settings of model and engine. `verbose`: print llama.cpp's log. `prompt_cache`: a file of prefilled tokens."""

    decode_settings: DecodeSettings
    sampling: SamplingSettings
    model_settings: ModelSettings
    offline: Offline = False
    verbose: Verbose = False
    prompt_cache: str | None = field(default=None, init=False)
    prompt_cache_ro: bool = field(default=False, init=False)

    @property
    def as_reference(self) -> Loading:
        """The settings for plain decoding. A fixed seed replaces a random one, so that a comparison can be repeated."""
        sampling = replace(self.sampling, seed=7) if self.sampling.seed < 0 else self.sampling
        return replace(self, decode_settings=replace(self.decode_settings, mode="plain"), sampling=sampling)

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
        """Load `model`, and yield an engine that renders prompts as `question` says.

        `slots`: sequences that a worker decodes at a time, None for one in the caller's thread. `often_alone`: mostly
        one sequence runs. `measure`: with several slots in mode auto, measure step costs that are not saved yet.
        """
        from lacli.auto.model_cost import SERVING
        from lacli.engine.load import open_engine
        from lacli.engine.prompt_cache import PromptCache
        from lacli.terminal.screen import loading_model
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
                engine.learn_cost(SERVING, screen.note)
            for sentence in engine.notes:
                (screen.warn if sentence in engine.warnings else screen.note)(sentence)
            if self.prompt_cache:
                engine.cache = PromptCache(self.prompt_cache, engine, screen.note, read_only=self.prompt_cache_ro)
            yield engine


@dataclass(frozen=True)
class CachedLoading(Loading):
    """Settings of an engine with a prompt cache, for run and chat."""

    prompt_cache: CacheFile = None
    prompt_cache_ro: CacheReadOnly = False


def loading_group(make: type[Made], **drafting: Any) -> Callable[..., Made]:
    """Return a function for `with_groups` that calls `make`. `drafting`: goes to `parameters_of(DecodeSettings)`."""
    decoding = group(decode_settings, preset, *parameters_of(DecodeSettings, **drafting))
    return with_groups(decode_settings=decoding, sampling=sampling_group, model_settings=engine_group)(make)
