"""`lacli run`: one question, one answer streamed to the screen, and what it cost if asked; or a file of prompts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from lacli import PARALLEL
from lacli.cli import options
from lacli.cli.chat import ANSWERING
from lacli.cli.environment import setting
from lacli.cli.groups import with_groups
from lacli.cli.prompt_options import NoStdin, Prompt, PromptFile, PromptOptions, Raw
from lacli.errors import Interrupted, UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings, Detail

if TYPE_CHECKING:
    from lacli.engine.answer import Answer, Generation
    from lacli.engine.load import ModelEngine
    from lacli.terminal.screen import Screen

LAST_TOKENS = 16
"""Tokens at the end of a prompt, enough to hold a mark that begins reasoning there."""

Prompts = Annotated[
    str | None,
    typer.Option("--prompts", metavar="FILE", show_default=False,
                 help='Answer the prompts of a file (-: stdin), several at a time. JSON lines: {"prompt": ...}, '
                 '{"turns": [...]}, {"messages": [...]} or OpenAI\'s batch requests, with "system", "max_tokens", '
                 '"raw" and "id" where wanted. Each answer is a line of JSON.'),
]  # fmt: skip
Answers = Annotated[
    str | None,
    typer.Option("-o", "--output", metavar="FILE", show_default="standard output",
                 help="File of the answers to --prompts. Each is written when it is there, and kept through Ctrl-C: "
                 "the same command goes on where it stopped."),
]  # fmt: skip
Parallel = Annotated[
    int | None,
    setting("-np", "--parallel", min=1, show_default=f"{PARALLEL}, with --strict 1",
            help="Answers to --prompts decoded at a time. -c is for all of them together; without -c each has as "
            "many tokens as one alone, where memory has room."),
]  # fmt: skip


@dataclass(frozen=True)
class Output:
    """How the answer is shown: as it comes or as JSON, with numbers, with llama.cpp's log.

    `has_schema`: it has to be JSON itself.
    """

    json: bool = False
    stats: Detail = ""
    verbose: bool = False
    has_schema: bool = False


@dataclass(frozen=True)
class Loading:
    """What an engine is made of. `model`: as MODEL is; None for smollm2-135m."""

    model: str | None
    model_settings: ModelSettings
    decode_settings: DecodeSettings
    sampling: SamplingSettings
    offline: bool

    @contextmanager
    def opened(
        self,
        question: PromptOptions,
        screen: Screen,
        slots: int | None = None,
        *,
        verbose: bool = False,
        often_alone: bool = False,
        measure: bool = False,
    ) -> Iterator[ModelEngine]:
        """Load the model: for a question, or for several of its kind, `slots` at a time.

        `often_alone`: fewer than `slots` are expected most of the time. `measure`: measure what steps of a new model
        cost here.
        """
        from lacli.auto.model_cost import SERVING
        from lacli.engine.load import open_engine
        from lacli.terminal.interrupts import ctrl_c_ends_at_once
        from lacli.terminal.screen import loading_model
        from lacli.text.files import state_file

        path = options.model_path(self.model, screen, self.offline)
        with loading_model(screen, verbose=verbose) as loading:
            opened = open_engine(
                path,
                self.model_settings,
                self.decode_settings,
                self.sampling,
                template=None if question.raw else question.template,
                template_variables=question.variables,
                slots=slots,
                often_alone=often_alone,
                verbose=verbose,
                loading=loading,
                reading=partial(screen.reading, shown=not verbose),
            )
        with opened as engine:
            engine.use_known(state_file())
            if measure and engine.slots > 1 and engine.settings.mode == "auto" and engine.wants_cost:
                screen.note(f"measuring what steps cost here, about {SERVING.seconds:g} s; --no-measure leaves it out")
                engine.learn_cost(SERVING, state_file(), screen.note, ctrl_c_ends_at_once())
            screen.notes(engine.notes, engine.warnings)
            yield engine


@with_groups(asked=options.asked, **ANSWERING)
def run(
    asked: options.Asked,
    prompt: Prompt = None,
    file: PromptFile = None,
    no_stdin: NoStdin = False,
    raw: Raw = False,
    prompts: Prompts = None,
    answers: Answers = None,
    at_a_time: Parallel = None,
    *,
    prompt_options: PromptOptions,
    decode_settings: DecodeSettings,
    sampling: SamplingSettings,
    model_settings: ModelSettings,
    offline: options.Offline = False,
    show_accepted: options.ShowAccepted = False,
    stats: options.Stats = "",
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    color: options.ColorWhen = "auto",
) -> None:
    """Answer one prompt; only the answer goes to standard output.

    Without MODEL smollm2-135m answers, if it is installed.

    The prompt is PROMPT or -p, a file (-f), or piped input; of several, first the file, then the pipe, then PROMPT. A
    note tells what a pipe adds; --no-stdin leaves it alone.

    --prompts answers all prompts of a file.
    """
    from lacli.terminal.screen import Screen
    from lacli.text.files import STDIN, read_question

    if asked.prompt is not None and prompt is not None:
        raise UsageError("the prompt is given twice, behind MODEL and with -p", "drop one of them")
    prompt = prompt if asked.prompt is None else asked.prompt
    if no_stdin and STDIN in (prompt, file):
        raise UsageError("--no-stdin goes without '-', which reads standard input", "drop one of them")
    if prompts is not None:
        if prompt is not None or file is not None:
            raise UsageError("--prompts goes without PROMPT, -p and -f", "drop one of them")
    elif answers is not None:
        raise UsageError("-o is for the answers to --prompts", "> FILE keeps a single answer")
    screen = Screen(color=color, quiet=quiet, show_accepted=show_accepted)
    question = replace(prompt_options, raw=raw)
    # A file may be a pipe: it is read once, and before the model is loaded.
    question = replace(question, typed=question.system, file=None)
    loading = Loading(asked.model, model_settings, decode_settings, sampling, offline)
    output = Output(json, stats, verbose, bool(sampling.json_schema))
    if prompts is not None:
        from lacli.cli.prompts import ask_all

        ask_all(prompts, answers, at_a_time, question, loading, output, screen)
        return
    text = read_question(prompt, file, stdin=False if no_stdin else None, say=screen.note)
    ask(replace(question, text=text), loading, output, screen)


def ask(question: PromptOptions, loading: Loading, output: Output, screen: Screen) -> None:
    """Answer one question. Raises Interrupted after Ctrl-C, when the text or the JSON object so far is out."""
    from lacli.terminal.interrupts import without_ctrl_c

    with loading.opened(question, screen, verbose=output.verbose) as engine:
        prompt = engine.prompt(question.text, question.system, raw=question.raw)
        stops = (*question.stops, *(() if question.raw else engine.prompts.turn_ends))
        generation = engine.generate(prompt, question.max_tokens, stops)
        stopped = False
        try:
            begun = engine.text(prompt[-LAST_TOKENS:], special=True)
            _show(generation, begun, None if output.json else screen)
        except KeyboardInterrupt:
            stopped = True
        finally:
            screen.end_line()
        if not stopped:
            _tell_end(engine, generation.answer(), question.max_tokens, output, screen)
            _tell_cost(engine, generation.answer(), output, screen, question.max_tokens)
            return
        if not generation.statistics.tokens:
            screen.note("stopped before the answer began")
        with without_ctrl_c():
            _tell_cost(engine, generation.answer(), output, screen)
        raise Interrupted("")


def _show(generation: Generation, prompt_end: str, screen: Screen | None) -> None:
    """Print the answer as it comes, or without a `screen` only take it."""
    from lacli.terminal.interrupts import second_ctrl_c_ends
    from lacli.text.reasoning import begun_reasoning, mark_reasoning

    # Left open, an error's traceback would keep it, and with it a decoder, longer than the model.
    with second_ctrl_c_ends(), closing(mark_reasoning(generation, begun_reasoning(prompt_end))) as pieces:
        if screen:
            screen.write(pieces)
        else:
            for _ in pieces:
                pass


def _tell_end(engine: ModelEngine, answer: Answer, max_tokens: int, output: Output, screen: Screen) -> None:
    """Say why and how the answer ended."""
    from lacli.report import context_full
    from lacli.text.format import counted

    if not output.json:
        screen.legend(answer.statistics.accepted_from)
    # Under -q too: a program that reads JSON could not.
    tell = screen.warn if output.has_schema else screen.note
    if answer.filled_context(max_tokens):
        cells = engine.context.cells
        incomplete = "its JSON may not be complete; " if output.has_schema else ""
        tell(context_full(cells, f"{incomplete}{engine.context_hint(cells + 1)}"))
    elif answer.finish_reason == "length" and output.has_schema and not output.json:
        cut = f"the answer was cut after {counted(len(answer.tokens), 'token')} by -n"
        tell(f"{cut}, and its JSON may not be complete; -n -1 lifts the limit")


def _tell_cost(engine: ModelEngine, answer: Answer, output: Output, screen: Screen, max_tokens: int = -1) -> None:
    """Print the JSON object and the report if asked. `max_tokens`: the answer's limit."""
    from json import dumps

    from lacli.report import as_json, as_lines

    if output.json:
        screen.line(dumps(as_json(engine, answer), ensure_ascii=False))
    if output.stats:
        screen.say(as_lines(engine, answer, detail=output.stats, max_tokens=max_tokens))
