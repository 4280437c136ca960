"""`lacli run`: its flags, turned into settings and one call of `ask`."""

from __future__ import annotations

from lacli.cli import options
from lacli.cli.groups import with_groups
from lacli.cli.lookahead_options import lookahead_group
from lacli.cli.options import model_group
from lacli.cli.sampling_options import sampling_group
from lacli.sampling import SamplingSettings
from lacli.settings import DecodeSettings, ModelSettings


@with_groups(sampling=sampling_group, decoding=lookahead_group, loading=model_group)
def run(
    model: options.Model = None,
    stdin: options.FromStdin = None,
    prompt: options.Prompt = None,
    file: options.PromptFile = None,
    system: options.System = "",
    system_file: options.SystemFile = None,
    raw: options.Raw = False,
    predict: options.Predict = -1,
    stop: options.Stop = None,
    *,
    decoding: DecodeSettings,
    sampling: SamplingSettings,
    loading: ModelSettings,
    show_accepted: options.ShowAccepted = False,
    stats: options.Stats = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    color: options.ColorWhen = "auto",
) -> None:
    """Answer one prompt: the text on stdout as it is accepted, everything else on stderr.

    The prompt comes from -p, from -f FILE, from '-' or a pipe; of several, in this order: file, pipe, -p.
    """
    from lacli.question import check_text, read_question, read_text
    from lacli.ui import Screen

    model, from_stdin = options.split_dash(model, stdin)
    options.check_raw(raw, system, system_file)
    text = read_question(prompt, file, stdin=from_stdin)
    system = read_text(system_file) if system_file else check_text(system, "-sys")
    stops = tuple(check_text(part, "--stop") for part in stop or ())

    from lacli.ask import Output, Question, ask

    screen = Screen(color=color, quiet=quiet, show_accepted=show_accepted)
    path = options.model_path(model, screen)
    ask(
        path,
        Question(text, system, raw, predict, stops),
        loading,
        decoding,
        sampling,
        Output(json, stats, verbose),
        screen,
    )
