"""The command `lacli run`: prints one answer as it is decoded, or answers a file of prompts."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from lacli.cli import options
from lacli.cli.options import CachedLoading, Loading, PromptOptions, loading_group, setting, with_groups
from lacli.errors import Interrupted, LacliError, UsageError
from lacli.settings import PARALLEL, Detail

if TYPE_CHECKING:
    from lacli.terminal.screen import Screen

LAST_TOKENS = 16
"""Tokens at the end of a prompt, enough to hold a mark that begins reasoning there."""

BLOCK = re.compile(r"^( *)(`{3,}|~{3,})[^\n`]*\n(.*?)^ *\2[`~]* *$", re.DOTALL | re.MULTILINE)
"""A fenced block of Markdown: its indent, fence and content."""

PromptFiles = Annotated[
    list[str] | None, typer.Option("-f", "--file", metavar="FILE", help="Put a file before the prompt. Repeatable.")
]
NoStdin = Annotated[bool, typer.Option("--no-stdin", help="Do not read standard input.")]
Raw = Annotated[bool, typer.Option("--raw", help="Continue the prompt without a chat template.")]
Extract = Annotated[bool, typer.Option("-x", "--extract", help="Print only the first fenced block of the answer.")]
Prompts = Annotated[
    str | None,
    typer.Option("--prompts", metavar="FILE", help="Answer all prompts of a file, lines or JSON lines (-: stdin)."),
]
Answers = Annotated[
    str | None, typer.Option("-o", "--output", metavar="FILE", help="Write the answers to --prompts as JSON lines.")
]
Parallel = Annotated[
    int | None,
    setting("-np", "--parallel", min=1, show_default=f"{PARALLEL}, with --strict 1",
            help="Decode this many answers to --prompts at a time."),
]  # fmt: skip


@with_groups(model_and_prompt=options.asked, question=options.prompt_group, loading=loading_group(CachedLoading))
def run(
    model_and_prompt: tuple[str | None, str | None],
    file: PromptFiles = None,
    no_stdin: NoStdin = False,
    raw: Raw = False,
    extract: Extract = False,
    prompts: Prompts = None,
    answers: Answers = None,
    at_a_time: Parallel = None,
    *,
    question: PromptOptions,
    loading: Loading,
    show_accepted: options.ShowAccepted = False,
    stats: options.Stats = "",
    json: options.Json = False,
    quiet: options.Quiet = False,
    color: options.ColorWhen = "auto",
) -> None:
    """Answer one prompt. Only the answer goes to standard output.

    The prompt is the files of -f, then piped input, then PROMPT or -p.
    """
    from lacli.terminal.input import STDIN, read_question
    from lacli.terminal.screen import Screen

    model, prompt = model_and_prompt
    if raw and question.system:
        raise UsageError("--raw uses no chat template, and a system prompt needs one", "drop one of them")
    if no_stdin and STDIN in (prompt, *(file or ())):
        raise UsageError("--no-stdin contradicts '-', which reads standard input", "drop one of them")
    if extract and (json or prompts is not None):
        raise UsageError("-x cannot be combined with --json or --prompts", "drop one of them")
    screen = Screen(color=color, quiet=quiet, show_accepted=show_accepted)
    question = replace(question, raw=raw)
    if prompts is not None:
        from lacli.cli.prompts import answer_file

        if prompt is not None or file is not None:
            raise UsageError("--prompts cannot be combined with PROMPT, -p or -f", "drop one of them")
        answer_file(prompts, None if answers == STDIN else answers, at_a_time, model, question, loading, screen)
        return
    if answers is not None:
        raise UsageError("-o is only for the answers to --prompts", "redirect a single answer: > FILE")
    text = read_question(prompt, file or (), model=model or "", stdin=not no_stdin, say=screen.note)
    form = "json" if json else "block" if extract else "text"
    answer(model, text, question, loading, screen, form=form, stats=stats)


def first_block(text: str) -> str:
    """Return the content of the first fenced block, without its indent. Raises LacliError if no block is closed."""
    if not (found := BLOCK.search(text)):
        raise LacliError("the answer has no complete fenced block", "without -x the whole answer is printed")
    return re.sub(rf"^ {{0,{len(found[1])}}}", "", found[3].removesuffix("\n"), flags=re.MULTILINE)


def answer(
    model: str | None, text: str, question: PromptOptions, loading: Loading, screen: Screen, *, form: str, stats: Detail
) -> None:
    """Answer the prompt `text`, and print the answer. After Ctrl-C, print the answer so far and raise Interrupted.

    `form`: print "text", a "json" object, or a "block", the first fenced block of the answer.
    """
    from lacli.interrupts import second_ctrl_c_ends, without_ctrl_c
    from lacli.report import as_json, as_lines, context_full
    from lacli.text.format import counted
    from lacli.text.reasoning import begun_reasoning, mark_reasoning

    with loading.opened(model, question, screen) as engine:
        prompt = engine.prompts.question(text, question.system, raw=question.raw)
        stops = (*question.stops, *(() if question.raw else engine.prompts.template.stops))
        generated, pieces = engine.generate(prompt, question.max_tokens, stops)
        reasons = begun_reasoning(engine.text(prompt[-LAST_TOKENS:], special=True))
        stopped, told = False, ""
        try:
            # A traceback with the open generator would keep its decoder longer than the model.
            with second_ctrl_c_ends(), closing(pieces):
                marked = mark_reasoning(pieces, reasons)
                screen.write(marked if form == "text" else ())
                told = "".join(piece.text for piece in marked if not piece.reasoning)
        except KeyboardInterrupt:
            stopped = True
        finally:
            screen.end_line()
        with without_ctrl_c():
            found, cells = generated.answer(), engine.context.cells
            if found.filled_context(question.max_tokens):
                screen.note(context_full(cells, engine.context_hint(cells)))
            elif found.finish_reason == "length":
                screen.note(f"the answer was cut after {counted(question.max_tokens, 'token')} (-n)")
            if found.finish_reason == "length" and loading.sampling.json_schema:
                screen.warn("the answer was cut, and its JSON may not be complete")
            if form == "json":
                screen.line(as_json(engine, found))
            else:
                screen.legend(found.statistics.accepted_from)
            if stats:
                screen.say(as_lines(engine, found, detail=stats, max_tokens=question.max_tokens))
        if stopped:
            raise Interrupted("")
        if form == "block":
            screen.line(first_block(told))
