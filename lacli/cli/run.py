"""`lacli run`: its flags, turned into settings and one call of `ask`."""

from __future__ import annotations

from lacli.cli import options
from lacli.cli.options import ModeName, Switch, WindowInitName, WindowShiftName


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
    seed: options.Seed = -1,
    mode: options.Mode = ModeName.lookahead,
    preset: options.Preset = None,
    window: options.Window = None,
    ngram: options.Ngram = None,
    guesses: options.Guesses = None,
    window_init: options.WindowInit = WindowInitName.pool,
    window_shift: options.WindowShift = WindowShiftName.once,
    pool_prompt: options.PoolPrompt = True,
    pool_text: options.PoolText = True,
    pool_keys: options.PoolKeys = 10_000,
    jacobi_iterations: options.JacobiIterations = None,
    lookup_match: options.LookupMatch = 2,
    lookup_draft: options.LookupDraft = 10,
    context: options.Context = 0,
    gpu_layers: options.GpuLayers = -1,
    threads: options.Threads = 0,
    threads_batch: options.ThreadsBatch = 0,
    batch_size: options.BatchSize = 2048,
    flash_attention: options.FlashAttention = Switch.auto,
    cache_type_k: options.CacheTypeK = "f16",
    cache_type_v: options.CacheTypeV = "f16",
    show_accepted: options.ShowAccepted = False,
    stats: options.Stats = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    color: options.ColorWhen = Switch.auto,
) -> None:
    """Answer one prompt: the text on stdout as it is accepted, everything else on stderr.

    The prompt comes from -p, from -f FILE, from '-' or a pipe; of several, in this order: file, pipe, -p.
    """
    from lacli.question import check_text, read_question, read_text
    from lacli.settings import ModelSettings, decode_settings
    from lacli.ui import Screen

    model, from_stdin = options.split_dash(model, stdin)
    chosen = decode_settings(
        preset,
        window=window,
        ngram=ngram,
        guesses=guesses,
        jacobi_iterations=jacobi_iterations,
        mode=mode.value,
        window_init=window_init.value,
        window_shift=window_shift.value,
        pool_prompt=pool_prompt,
        pool_text=pool_text,
        pool_keys=pool_keys,
        lookup_match=lookup_match,
        lookup_draft=lookup_draft,
    )
    model_settings = ModelSettings(
        context=context,
        batch=batch_size,
        gpu_layers=gpu_layers,
        threads=threads,
        threads_batch=threads_batch,
        flash_attention=flash_attention.value,
        cache_type_k=cache_type_k,
        cache_type_v=cache_type_v,
    )
    options.check_raw(raw, system, system_file)
    text = read_question(prompt, file, stdin=from_stdin)
    system = read_text(system_file) if system_file else check_text(system, "-sys")
    stops = tuple(check_text(part, "--stop") for part in stop or ())

    from lacli.ask import Output, Question, ask
    from lacli.resolve import find_model

    screen = Screen(color=color.value, quiet=quiet, show_accepted=show_accepted)
    path = find_model(model)
    if model is None:
        screen.note(f"no MODEL given: this is the bundled demo model {path.name}, trained on Python's standard library")
    ask(
        path,
        Question(text, system, raw, predict, stops),
        model_settings,
        chosen,
        Output(json, stats, verbose),
        screen,
    )
