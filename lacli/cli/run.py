"""`lacli run`: its flags, turned into settings and one call of `ask`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from lacli.cli import options
from lacli.cli.chat import ANSWERING, plan_of, start
from lacli.cli.environment import setting
from lacli.cli.groups import with_groups
from lacli.cli.options import Wording
from lacli.errors import UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings, ReplicaSettings
from lacli.settings import DecodeSettings

History = Annotated[bool, setting("--history/--no-history", hidden=True)]
"""Of the chat that a run without a prompt is."""


@with_groups(**ANSWERING)
def run(
    model: options.Model = None,
    stdin: options.FromStdin = None,
    prompt: options.Prompt = None,
    file: options.PromptFile = None,
    no_stdin: options.NoStdin = False,
    raw: options.Raw = False,
    history: History = True,
    *,
    wording: Wording,
    decoding: DecodeSettings,
    sampling: SamplingSettings,
    loading: ModelSettings,
    copies: ReplicaSettings,
    offline: options.Offline = False,
    store: options.Store = False,
    show_accepted: options.ShowAccepted = False,
    stats: options.Stats = False,
    explain: options.Explain = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    color: options.ColorWhen = "auto",
) -> None:
    """Answer one prompt: the text on stdout as it is accepted, everything else on stderr.

    The prompt comes from -p, from -f FILE, from '-' or a pipe; of several, in this order: file, pipe, -p. Without one,
    on a terminal, it is 'lacli chat'. What a pipe adds is said; --no-stdin leaves it alone.
    """
    from lacli.terminal.screen import Screen
    from lacli.text.question import STDIN, on_terminal, read_question

    model, from_stdin = options.split_dash(model, stdin)
    if raw:
        wording.check_raw()
    if no_stdin and (from_stdin or STDIN in (prompt, file)):
        raise UsageError("--no-stdin goes without '-', which reads standard input", "drop one of them")
    if prompt is None and file is None and not (from_stdin or raw or json) and on_terminal():
        plan = replace(
            plan_of(model, wording, decoding, sampling, history=history, store=store),
            color=color,
            stats=stats,
            explain=explain,
            verbose=verbose,
            replicas=copies,
        )
        start(plan, loading, offline=offline, quiet=quiet, show_accepted=show_accepted)
        return
    screen = Screen(color=color, quiet=quiet, show_accepted=show_accepted)
    text = read_question(prompt, file, stdin=False if no_stdin else from_stdin or None, say=screen.note)

    from lacli.cli.ask import Output, Question, ask
    from lacli.text.records import state_file

    path = options.model_path(model, screen, offline)
    ask(
        path,
        Question(text, wording.system, raw, wording.limit, wording.stops, wording.template, wording.variables),
        loading,
        decoding,
        sampling,
        Output(json, stats, verbose, explain),
        screen,
        state_file() if store else None,
        state_file(),
        copies,
    )
